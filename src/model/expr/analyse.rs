//! Tokens to something that can be rendered. Paths are taken out of the expression and looked up by us: that
//! makes them strict, exact in their messages, and lets a plain path stay the bytes it was. What is left goes to
//! the expression compiler with `_v0`, `_v1`, … in their place.

use super::Root;
use super::lex::{Lexeme, Source, Token};
use super::lookup::{Lookups, Path};
use super::program::{FILTERS, FUNCTIONS, Program, TESTS, Var};
use crate::model::json;
use crate::model::nearest::did_you_mean;

/// What may be read from one place in a document.
pub(crate) trait Names {
    /// The index of a task that may be read here; `Err` says why there is none.
    fn task(&self, id: &str) -> Result<u32, String>;
    /// Which of the words that are not seen everywhere are seen here.
    fn place(&self) -> Place;
}

/// Words that are seen in some places only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Place {
    /// `item` and `index`: a `for_each` is around.
    pub(crate) item: bool,
    /// `loop.index` and `loop.previous`: a `repeat` is around.
    pub(crate) repeat: bool,
    /// `loop.output`: an iteration of the task itself has ended.
    pub(crate) ended: bool,
    /// `run.status` and `run.error`: the run is about to end.
    pub(crate) finally: bool,
}

/// An expression, compiled.
#[derive(Debug)]
pub(super) enum Compiled {
    /// A plain path.
    Path(usize),
    /// `path | default(…)`: the bytes at the path, or the other where there is nothing or null.
    Default(usize, Box<Compiled>),
    /// Anything else.
    Program(Program),
}

/// What `run` has.
const RUN: [&str; 8] = ["id", "workflow", "version", "try", "created_at", "tags", "priority", "schedule"];
/// What `run.schedule` has.
const SCHEDULE: [&str; 2] = ["name", "slot"];
/// What it has in `finally`, too.
const RUN_FINALLY: [&str; 2] = ["status", "error"];
/// What `loop` has.
const LOOP: [&str; 3] = ["index", "output", "previous"];
/// What errors have.
const ERROR: [&str; 2] = ["code", "message"];

/// Compiles one expression, or says everything that is wrong with it.
pub(super) fn compile(
    source: &Source<'_>,
    names: &dyn Names,
    lookups: &mut Lookups,
) -> Result<Compiled, Vec<String>> {
    let mut faults = Vec::new();
    let compiled = part(&source.tokens, names, lookups, &mut faults);
    match compiled {
        Some(compiled) if faults.is_empty() => Ok(compiled),
        _ => Err(faults),
    }
}

fn part(
    tokens: &[Token<'_>],
    names: &dyn Names,
    lookups: &mut Lookups,
    faults: &mut Vec<String>,
) -> Option<Compiled> {
    let mut rewriter = Rewriter { tokens, names, lookups, faults, out: String::new(), vars: Vec::new() };
    if rewriter.is_variable(0) {
        let Some((path, end)) = rewriter.path(0) else {
            rewriter.rewrite(1, tokens.len());
            return None;
        };
        let inside = match &tokens[end..] {
            [] => return Some(Compiled::Path(rewriter.lookups.add(path))),
            [pipe, name, open, inside @ .., close]
                if pipe.is("|") && is_default(name) && open.is("(") && close.is(")") =>
            {
                inside
            }
            _ => &[],
        };
        if is_one_argument(inside) {
            let lookup = rewriter.lookups.add(path);
            let other = part(inside, names, lookups, faults)?;
            return Some(Compiled::Default(lookup, Box::new(other)));
        }
    }
    rewriter.rewrite(0, tokens.len());
    let (out, vars) = (rewriter.out, rewriter.vars);
    if !faults.is_empty() {
        return None;
    }
    match Program::compile(out, vars) {
        Ok(program) => Some(Compiled::Program(program)),
        Err(message) => {
            faults.push(message);
            None
        }
    }
}

fn is_default(token: &Token<'_>) -> bool {
    token.is_name("default") || token.is_name("d")
}

/// Whether the tokens are one positional argument: no comma or `=` outside of brackets, brackets in balance.
fn is_one_argument(tokens: &[Token<'_>]) -> bool {
    let mut open = 0;
    for token in tokens {
        match token.text {
            "(" | "[" | "{" if token.kind == Lexeme::Symbol => open += 1,
            ")" | "]" | "}" if token.kind == Lexeme::Symbol => open -= 1,
            "," | "=" | "*" | "**" if token.kind == Lexeme::Symbol && open == 0 => return false,
            _ => {}
        }
        if open < 0 {
            return false;
        }
    }
    open == 0 && !tokens.is_empty()
}

struct Rewriter<'a, 's> {
    tokens: &'a [Token<'s>],
    names: &'a dyn Names,
    lookups: &'a mut Lookups,
    faults: &'a mut Vec<String>,
    out: String,
    vars: Vec<Var>,
}

impl<'s> Rewriter<'_, 's> {
    fn token(&self, at: usize) -> Option<&Token<'s>> {
        self.tokens.get(at)
    }

    fn symbol(&self, at: usize, text: &str) -> bool {
        self.token(at).is_some_and(|t| t.is(text))
    }

    fn before(&self, at: usize, back: usize) -> Option<&Token<'s>> {
        at.checked_sub(back).and_then(|at| self.tokens.get(at))
    }

    /// Whether the token is this word, and not an attribute of that name.
    fn keyword(&self, at: usize, word: &str) -> bool {
        self.token(at).is_some_and(|t| t.is_name(word)) && !self.before(at, 1).is_some_and(|t| t.is("."))
    }

    /// The place of a name decides what it is.
    fn is_test_name(&self, at: usize) -> bool {
        let is = |back: usize| at >= back && self.keyword(at - back, "is");
        is(1) || (is(2) && self.keyword(at - 1, "not"))
    }

    fn is_variable(&self, at: usize) -> bool {
        let Some(token) = self.token(at) else { return false };
        token.kind == Lexeme::Name
            && !matches!(token.text, "and" | "or" | "not" | "in" | "is" | "if" | "else")
            && !matches!(token.text, "true" | "True" | "false" | "False" | "none" | "None")
            && !self.before(at, 1).is_some_and(|t| t.is(".") || t.is("|"))
            && !self.is_test_name(at)
            && !self.symbol(at + 1, "(")
            && !self.symbol(at + 1, "=")
    }

    fn emit(&mut self, text: &str) {
        if !self.out.is_empty() {
            self.out.push(' ');
        }
        self.out.push_str(text);
    }

    fn rewrite(&mut self, from: usize, to: usize) {
        let mut at = from;
        while at < to {
            at = self.step(at);
        }
    }

    /// Rewrites what begins at `at`; returns where the next begins.
    fn step(&mut self, at: usize) -> usize {
        if self.is_variable(at) {
            return match self.path(at) {
                Some((path, end)) => self.access(path, at, end),
                // The fault is told; go on behind the name for further ones.
                None => at + 1,
            };
        }
        let token = self.tokens[at];
        if token.kind == Lexeme::Name {
            self.check_name(at, token.text);
        }
        self.emit(token.text);
        at + 1
    }

    fn check_name(&mut self, at: usize, name: &str) {
        let previous_is = |text: &str| self.before(at, 1).is_some_and(|t| t.is(text));
        let (what, known): (_, &[&str]) = if previous_is("|") {
            ("filter", &FILTERS)
        } else if self.is_test_name(at) && name != "not" {
            ("test", &TESTS)
        } else if self.symbol(at + 1, "(") && previous_is(".") {
            self.faults
                .push(format!("a value has no function '{name}'; filters are written 'value | {name}'"));
            return;
        } else if self.symbol(at + 1, "(")
            && !matches!(name, "and" | "or" | "not" | "in" | "is" | "if" | "else")
        {
            ("function", &FUNCTIONS)
        } else {
            return;
        };
        if !known.contains(&name) {
            self.faults
                .push(format!("there is no {what} '{name}'{}", did_you_mean(name, known.iter().copied())));
        }
    }

    /// Writes the access to a path that stands from `at` to `end`; takes in computed subscripts behind it.
    fn access(&mut self, path: Path, at: usize, end: usize) -> usize {
        let shown = path.shown.clone();
        let lookup = self.lookups.add(path);
        let mut stop = end;
        while let Some(next) = self.postfix(stop) {
            stop = next;
        }
        if self.symbol(stop, "(") {
            self.faults.push(format!("{shown} is called like a function, but values are not functions"));
        }
        let lenient = self.is_lenient(at, stop);
        let var = self.var(lookup, lenient);
        if stop == end {
            self.emit(&var);
            return stop;
        }
        let mut quoted = Vec::new();
        json::write_string(&shown, &mut quoted);
        self.emit(if lenient { "_opt(" } else { "_get(" });
        self.emit(&String::from_utf8_lossy(&quoted));
        self.emit(",");
        self.emit(&var);
        let mut from = end;
        while let Some(next) = self.postfix(from).filter(|_| from < stop) {
            self.emit(",");
            if self.symbol(from, ".") {
                let name = self.tokens[from + 1];
                let text =
                    if name.kind == Lexeme::Name { format!("'{}'", name.text) } else { name.text.to_owned() };
                self.emit(&text);
            } else {
                self.emit("(");
                self.rewrite(from + 1, next - 1);
                self.emit(")");
            }
            from = next;
        }
        self.emit(")");
        stop
    }

    fn var(&mut self, lookup: usize, lenient: bool) -> String {
        let var = Var { lookup, lenient };
        let number = self.vars.iter().position(|v| *v == var).unwrap_or_else(|| {
            self.vars.push(var);
            self.vars.len() - 1
        });
        format!("_v{number}")
    }

    /// Where `.name` or `[…]` at `at` ends; `None` if neither stands there, or it is a slice.
    fn postfix(&self, at: usize) -> Option<usize> {
        if self.symbol(at, ".") {
            let name = self.token(at + 1)?;
            let method = self.symbol(at + 2, "(");
            return (matches!(name.kind, Lexeme::Name | Lexeme::Integer) && !method).then_some(at + 2);
        }
        if !self.symbol(at, "[") {
            return None;
        }
        let mut open = 0;
        for (n, token) in self.tokens[at..].iter().enumerate().filter(|(_, t)| t.kind == Lexeme::Symbol) {
            match token.text {
                "(" | "[" | "{" => open += 1,
                ")" | "]" | "}" => open -= 1,
                ":" if open == 1 => return None,
                _ => {}
            }
            if open == 0 {
                return (n > 1).then_some(at + n + 1);
            }
        }
        None
    }

    /// Whether what stands from `at` to `end`, brackets around it aside, may be missing.
    fn is_lenient(&self, mut at: usize, mut end: usize) -> bool {
        while self.symbol(end, ")") && self.before(at, 1).is_some_and(|t| t.is("(")) {
            let called = self.before(at, 2).is_some_and(|t| match t.kind {
                Lexeme::Name => !matches!(t.text, "and" | "or" | "not" | "in" | "is" | "if" | "else"),
                Lexeme::Symbol => matches!(t.text, ")" | "]" | "}"),
                Lexeme::Integer | Lexeme::Float | Lexeme::String => false,
            });
            if called {
                return false;
            }
            at -= 1;
            end += 1;
        }
        if self.symbol(end, "|") {
            return self.token(end + 1).is_some_and(is_default);
        }
        let name = if self.keyword(end + 1, "not") { end + 2 } else { end + 1 };
        self.keyword(end, "is")
            && self.token(name).is_some_and(|t| t.is_name("defined") || t.is_name("undefined"))
    }

    /// The path that begins at `at`, and where it ends. `None`: a fault was told.
    fn path(&mut self, at: usize) -> Option<(Path, usize)> {
        let name = self.tokens[at].text;
        let (mut steps, end) = self.steps(at + 1);
        let shown = steps.iter().fold(name.to_owned(), |shown, step| show_step(shown, step));
        let place = self.names.place();
        let root = match name {
            "input" => Some(Root::Input),
            "run" => self.run(&steps, place),
            "tasks" => self.task(&mut steps),
            "item" | "index" if !place.item => self.fault(format!(
                "'{name}' is seen under for_each only; 'if' and 'for_each' itself see that of a group around"
            )),
            "item" => Some(Root::Item),
            "index" if steps.is_empty() => Some(Root::Index),
            "index" => self.fault("index is a number and has nothing inside"),
            "loop" => self.iteration(&mut steps, place),
            _ => {
                let mut known = vec!["input", "tasks", "run"];
                known.extend(["item", "index"].iter().filter(|_| place.item));
                known.extend(["loop"].iter().filter(|_| place.repeat));
                let hint = did_you_mean(name, known.iter().copied());
                let (last, others) = known.split_last()?;
                let others = others.join(", ");
                self.fault(format!("there is no '{name}'{hint}; an expression here sees {others} and {last}"))
            }
        }?;
        Some((Path { root, steps, shown }, end))
    }

    fn fault<T>(&mut self, message: impl Into<String>) -> Option<T> {
        self.faults.push(message.into());
        None
    }

    fn run(&mut self, steps: &[String], place: Place) -> Option<Root> {
        let Some(first) = steps.first().map(String::as_str) else { return Some(Root::Run) };
        let ended = RUN_FINALLY.contains(&first);
        if ended && !place.finally {
            return self.fault(format!("run.{first} is seen in 'finally' only: until then nobody knows"));
        }
        if !ended && !RUN.contains(&first) {
            let known = RUN.iter().chain(RUN_FINALLY.iter().filter(|_| place.finally)).copied();
            let all = known.clone().collect::<Vec<_>>().join(", ");
            return self.fault(format!("run has no '{first}'{}; it has {all}", did_you_mean(first, known)));
        }
        match (first, steps.get(1)) {
            ("status", Some(_)) => self.fault("run.status is text and has nothing inside"),
            ("error", Some(part)) if !ERROR.contains(&part.as_str()) || steps.len() > 2 => {
                self.fault(format!("run.error has code and message, no '{}'", steps[1..].join(".")))
            }
            ("schedule", Some(part)) if !SCHEDULE.contains(&part.as_str()) || steps.len() > 2 => {
                self.fault(format!("run.schedule has name and slot, no '{}'", steps[1..].join(".")))
            }
            _ => Some(Root::Run),
        }
    }

    /// Takes the field off the steps of `loop.…`.
    fn iteration(&mut self, steps: &mut Vec<String>, place: Place) -> Option<Root> {
        if !place.repeat {
            return self
                .fault("'loop' is seen under repeat only; 'if' and 'for_each' see that of a group around");
        }
        if steps.is_empty() {
            return self.fault("'loop' stands for no value; write loop.index, loop.previous or loop.output");
        }
        let field = steps.remove(0);
        match field.as_str() {
            "index" if steps.is_empty() => Some(Root::LoopIndex),
            "index" => self.fault("loop.index is a number and has nothing inside"),
            "previous" => Some(Root::LoopPrevious),
            "output" if place.ended => Some(Root::LoopOutput),
            "output" => self.fault(
                "loop.output is seen in 'while' and 'delay' only; elsewhere loop.previous has the iteration before",
            ),
            _ => self.fault(format!(
                "loop has no '{field}'{}; it has index, output and previous",
                did_you_mean(&field, LOOP)
            )),
        }
    }

    /// Takes task and field off the steps of `tasks.…`.
    fn task(&mut self, steps: &mut Vec<String>) -> Option<Root> {
        let Some(id) = steps.first().cloned() else {
            self.faults
                .push("'tasks' stands for no value; name a task outright: tasks.<id>.output".to_owned());
            return None;
        };
        let index = match self.names.task(&id) {
            Ok(index) => index,
            Err(message) => {
                self.faults.push(message);
                return None;
            }
        };
        let fields = ["output", "status", "error"];
        let Some(field) = steps.get(1).cloned() else {
            self.faults.push(format!(
                "tasks.{id} stands for no value; write tasks.{id}.output, tasks.{id}.status or tasks.{id}.error"
            ));
            return None;
        };
        let bad = match (field.as_str(), steps.len()) {
            ("output", _) => {
                steps.drain(..2);
                return Some(Root::Output(index));
            }
            ("status" | "error", 2) => None,
            ("error", 3) if matches!(steps[2].as_str(), "code" | "message") => None,
            ("status", _) => Some(format!("tasks.{id}.status is text and has nothing inside")),
            ("error", _) => Some(format!("tasks.{id}.error has code and message, no '{}'", steps[2])),
            _ => Some(format!(
                "tasks.{id} has no '{field}'{}; it has output, status and error",
                did_you_mean(&field, fields)
            )),
        };
        if let Some(message) = bad {
            self.faults.push(message);
            return None;
        }
        steps.remove(0);
        Some(Root::Facts(index))
    }

    /// The steps that are known outright, from `at`, and where they end.
    fn steps(&self, mut at: usize) -> (Vec<String>, usize) {
        let mut steps = Vec::new();
        loop {
            let (step, end) = if self.symbol(at, ".") {
                (self.token(at + 1), at + 2)
            } else if self.symbol(at, "[") && self.symbol(at + 2, "]") {
                (self.token(at + 1), at + 3)
            } else {
                return (steps, at);
            };
            let dotted = self.symbol(at, ".");
            let Some(step) = step else { return (steps, at) };
            let key = match step.kind {
                Lexeme::Name if dotted && !self.symbol(end, "(") => step.text.to_owned(),
                Lexeme::Integer if step.text.bytes().all(|b| b.is_ascii_digit()) => {
                    let digits = step.text.trim_start_matches('0');
                    if digits.is_empty() { "0".to_owned() } else { digits.to_owned() }
                }
                Lexeme::String if !dotted && !step.text.contains('\\') => {
                    step.text[1..step.text.len() - 1].to_owned()
                }
                Lexeme::Name | Lexeme::Integer | Lexeme::Float | Lexeme::String | Lexeme::Symbol => {
                    return (steps, at);
                }
            };
            steps.push(key);
            at = end;
        }
    }
}

/// A path with one more step, as users would write it.
pub(super) fn show_step(shown: String, step: &str) -> String {
    if step.bytes().all(|b| b.is_ascii_digit()) {
        shown + "[" + step + "]"
    } else if step.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_') {
        shown + "." + step
    } else {
        format!("{shown}[{step:?}]")
    }
}

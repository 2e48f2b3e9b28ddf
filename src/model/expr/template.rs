//! A JSON value with expressions in it. Compiled to pieces, so that rendering is copying: literal JSON in
//! between is written once, at registration.

use super::analyse::{Compiled, Names, compile};
use super::lex::{self, Part};
use super::lookup::{Found, Lookups};
use super::program::too_deep;
use super::{ExprError, Root, Scope};
use crate::model::document::{Kind, Node, join, sorted};
use crate::model::error::Fault;
use crate::model::json::{self, MAX_DEPTH};
use crate::model::payload::PAYLOAD_MAX;
use bytes::Bytes;

/// Computed expressions one template may hold: together with their fuel this bounds a rendering.
const MAX_COMPUTED: usize = 256;

/// A JSON value with expressions in it, compiled.
#[derive(Debug)]
pub struct Template {
    pieces: Vec<Piece>,
    lookups: Lookups,
    roots: Vec<Root>,
    computed: u32,
}

#[derive(Debug)]
enum Piece {
    /// JSON text as it is.
    Raw(Bytes),
    /// A whole value, `depth` containers deep.
    Value { what: Compiled, source: Box<str>, depth: usize },
    /// Inside a JSON string.
    Text { what: Compiled, source: Box<str> },
}

impl Template {
    /// Compiles the value `node`, which stands at `path`. Faults are added to `faults`; the template is then of no
    /// use. Needs a deep stack.
    pub(crate) fn compile(node: &Node, path: &str, names: &dyn Names, faults: &mut Vec<Fault>) -> Self {
        let mut builder = Builder {
            names,
            faults,
            raw: Vec::new(),
            pieces: Vec::new(),
            lookups: Lookups::default(),
            computed: 0,
        };
        builder.value(node, path, 0);
        if builder.computed > MAX_COMPUTED {
            let message = format!(
                "there are {} computed expressions here; the limit is {MAX_COMPUTED} (plain paths do not count)",
                builder.computed
            );
            builder.faults.push(Fault { path: path.to_owned(), line: node.at(), message });
        }
        builder.flush();
        let roots = builder.lookups.roots();
        Self { pieces: builder.pieces, lookups: builder.lookups, roots, computed: builder.computed as u32 }
    }

    /// The value as JSON text with its expressions as they were written, for people.
    pub fn source(&self) -> String {
        let piece = |piece: &Piece| match piece {
            Piece::Raw(raw) => String::from_utf8_lossy(raw).into_owned(),
            Piece::Value { source, .. } | Piece::Text { source, .. } => format!("${{{{ {source} }}}}"),
        };
        self.pieces.iter().map(piece).collect()
    }

    /// What it reads: each root once, in order.
    pub fn roots(&self) -> &[Root] {
        &self.roots
    }

    /// How many expressions have to be computed to render it: all but plain paths.
    pub fn computed(&self) -> u32 {
        self.computed
    }

    /// If the whole template is one plain path into a payload (all roots but facts and numbers): its root and
    /// the steps behind it, as [`json::walk`] takes them.
    pub fn as_path(&self) -> Option<(Root, &[String])> {
        match &self.pieces[..] {
            [Piece::Value { what: Compiled::Path(lookup), .. }] => {
                let path = self.lookups.path(*lookup);
                matches!(
                    path.root,
                    Root::Input | Root::Output(_) | Root::Item | Root::LoopOutput | Root::LoopPrevious
                )
                .then(|| (path.root.clone(), &path.steps[..]))
            }
            _ => None,
        }
    }

    /// JSON text of the value. `what` names the place in messages, e.g. `tasks.ship.input`.
    ///
    /// # Errors
    /// `missing_value`, `expression_failed`, `number_out_of_range`, `value_too_large` (over 1 MiB) or
    /// `value_too_deep`.
    pub fn render(&self, scope: &dyn Scope, what: &str) -> Result<Bytes, ExprError> {
        if let [Piece::Raw(raw)] = &self.pieces[..]
            && raw.len() <= PAYLOAD_MAX
        {
            return Ok(raw.clone());
        }
        let mut out = Vec::new();
        let mut found = Found::new(&self.lookups, scope);
        for piece in &self.pieces {
            let source = match piece {
                Piece::Raw(_) => "",
                Piece::Value { source, .. } | Piece::Text { source, .. } => source,
            };
            piece.render(&mut found, &mut out).map_err(|e| located(e, what, source))?;
            if out.len() > PAYLOAD_MAX {
                let message = format!(
                    "{what} comes to {} bytes or more; the limit is {PAYLOAD_MAX} (1 MiB)",
                    out.len()
                );
                return Err(ExprError { code: "value_too_large", message });
            }
        }
        Ok(out.into())
    }
}

/// Says where an error happened.
fn located(error: ExprError, what: &str, source: &str) -> ExprError {
    let shown: String = source.chars().take(120).collect();
    let cut = if shown.len() < source.len() { "…" } else { "" };
    ExprError { code: error.code, message: format!("{what}: {} (in ${{{{ {shown}{cut} }}}})", error.message) }
}

impl Piece {
    fn render(&self, found: &mut Found<'_, '_>, out: &mut Vec<u8>) -> Result<(), ExprError> {
        match self {
            Self::Raw(raw) => out.extend_from_slice(raw),
            Self::Value { what, depth, .. } => {
                let from = out.len();
                value(what, found, out)?;
                // A nesting of n takes 2n bytes: most values are too short to look into.
                let made = &out[from..];
                if depth + made.len() / 2 > MAX_DEPTH && depth + json::depth(made) > MAX_DEPTH {
                    return Err(too_deep());
                }
            }
            Self::Text { what, .. } => text(what, found, out)?,
        }
        Ok(())
    }
}

fn value(what: &Compiled, found: &mut Found<'_, '_>, out: &mut Vec<u8>) -> Result<(), ExprError> {
    match what {
        Compiled::Path(path) => match found.raw(*path)? {
            Some(raw) => out.extend_from_slice(raw),
            None => return Err(found.missing(*path)),
        },
        Compiled::Default(path, other) => match found.raw(*path)? {
            Some(raw) if raw != b"null" => out.extend_from_slice(raw),
            _ => value(other, found, out)?,
        },
        Compiled::Program(program) => program.json(found, out)?,
    }
    Ok(())
}

fn text(what: &Compiled, found: &mut Found<'_, '_>, out: &mut Vec<u8>) -> Result<(), ExprError> {
    match what {
        Compiled::Path(path) => {
            let shown = found.shown(*path);
            match found.raw(*path)? {
                Some(raw) => inside(raw, shown, out)?,
                None => return Err(found.missing(*path)),
            }
        }
        Compiled::Default(path, other) => {
            let shown = found.shown(*path);
            match found.raw(*path)? {
                Some(raw) if raw != b"null" => inside(raw, shown, out)?,
                _ => text(other, found, out)?,
            }
        }
        Compiled::Program(program) => program.text(found, out)?,
    }
    Ok(())
}

/// Copies a value into a JSON string: a string without its quotes, a number or boolean as its token.
fn inside(raw: &[u8], shown: &str, out: &mut Vec<u8>) -> Result<(), ExprError> {
    let kind = match raw.first() {
        Some(b'"') => {
            out.extend_from_slice(&raw[1..raw.len() - 1]);
            return Ok(());
        }
        Some(b'n') | None => "null",
        Some(b'[') => "a list",
        Some(b'{') => "an object",
        Some(_) => {
            out.extend_from_slice(raw);
            return Ok(());
        }
    };
    Err(ExprError {
        code: "expression_failed",
        message: format!("{shown} is {kind}, which cannot stand inside text; text, numbers and booleans can"),
    })
}

struct Builder<'a> {
    names: &'a dyn Names,
    faults: &'a mut Vec<Fault>,
    raw: Vec<u8>,
    pieces: Vec<Piece>,
    lookups: Lookups,
    computed: usize,
}

impl Builder<'_> {
    fn flush(&mut self) {
        if !self.raw.is_empty() {
            self.pieces.push(Piece::Raw(Bytes::from(std::mem::take(&mut self.raw))));
        }
    }

    fn fault(&mut self, path: &str, node_line: Option<u32>, message: String) {
        self.faults.push(Fault { path: path.to_owned(), line: node_line, message });
    }

    fn value(&mut self, node: &Node, path: &str, depth: usize) {
        match &node.kind {
            Kind::String(text) => self.string(text, node, path, depth),
            Kind::List(_) | Kind::Map(_) if depth >= MAX_DEPTH => {
                self.fault(path, node.at(), format!("nested deeper than {MAX_DEPTH}"));
            }
            Kind::List(items) => {
                self.raw.push(b'[');
                for (n, item) in items.iter().enumerate() {
                    if n > 0 {
                        self.raw.push(b',');
                    }
                    self.value(item, &format!("{path}[{n}]"), depth + 1);
                }
                self.raw.push(b']');
            }
            Kind::Map(entries) => {
                self.raw.push(b'{');
                for (n, entry) in sorted(entries).into_iter().enumerate() {
                    if n > 0 {
                        self.raw.push(b',');
                    }
                    let path = join(path, &entry.key);
                    if lex::has_expression(&entry.key) {
                        let message = "an expression may not stand in a key; '$${{' writes '${{'".to_owned();
                        self.fault(&path, Some(entry.line).filter(|l| *l > 0), message);
                    }
                    json::write_string(&entry.key.replace("$${{", "${{"), &mut self.raw);
                    self.raw.push(b':');
                    self.value(&entry.value, &path, depth + 1);
                }
                self.raw.push(b'}');
            }
            Kind::Null | Kind::Bool(_) | Kind::Number(_) => node.write_json(&mut self.raw),
        }
    }

    fn string(&mut self, text: &str, node: &Node, path: &str, depth: usize) {
        let parts = match lex::split(text) {
            Ok(parts) => parts,
            Err(message) => return self.fault(path, node.at(), message),
        };
        let whole = matches!(parts[..], [Part::Expression(_)]);
        if !whole {
            self.raw.push(b'"');
        }
        for part in parts {
            let source = match part {
                Part::Text(text) => {
                    json::write_escaped(&text, &mut self.raw);
                    continue;
                }
                Part::Expression(source) => source,
            };
            let what = match compile(&source, self.names, &mut self.lookups) {
                Ok(what) => what,
                Err(messages) => {
                    let shown: String = source.text.chars().take(80).collect();
                    for message in messages {
                        self.fault(path, node.at(), format!("{message} (in ${{{{ {shown} }}}})"));
                    }
                    continue;
                }
            };
            if has_program(&what) {
                self.computed += 1;
            }
            self.flush();
            let source = source.text.into();
            self.pieces.push(if whole {
                Piece::Value { what, source, depth }
            } else {
                Piece::Text { what, source }
            });
        }
        if !whole {
            self.raw.push(b'"');
        }
    }
}

fn has_program(what: &Compiled) -> bool {
    match what {
        Compiled::Path(_) => false,
        Compiled::Default(_, other) => has_program(other),
        Compiled::Program(_) => true,
    }
}

//! A computed expression: compiled once, run with fuel, fed with values parsed from JSON and read back as JSON.

use super::ExprError;
use super::lookup::Found;
use crate::model::json::{self, MAX_DEPTH, Reader, Token};
use indexmap::IndexMap;
use minijinja::value::{Object, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Expression, UndefinedBehavior, Value};
use std::fmt;
use std::sync::{Arc, LazyLock};

/// Work one evaluation may do: about one per instruction, per item gone through and per 64 bytes made.
const FUEL: u64 = 200_000;

/// Filters an expression may use. `safe` and `escape` are for markup, `pprint` for debugging: left out.
pub(super) const FILTERS: [&str; 44] = [
    "abs",
    "attr",
    "batch",
    "bool",
    "capitalize",
    "chain",
    "count",
    "d",
    "default",
    "dictsort",
    "first",
    "float",
    "format",
    "groupby",
    "indent",
    "int",
    "items",
    "join",
    "last",
    "length",
    "lines",
    "list",
    "lower",
    "map",
    "max",
    "min",
    "reject",
    "rejectattr",
    "replace",
    "reverse",
    "round",
    "select",
    "selectattr",
    "slice",
    "sort",
    "split",
    "string",
    "sum",
    "title",
    "tojson",
    "trim",
    "unique",
    "upper",
    "zip",
];

/// Tests an expression may use.
pub(super) const TESTS: [&str; 32] = [
    "boolean",
    "defined",
    "divisibleby",
    "endingwith",
    "eq",
    "equalto",
    "even",
    "false",
    "float",
    "ge",
    "greaterthan",
    "gt",
    "in",
    "int",
    "integer",
    "iterable",
    "le",
    "lessthan",
    "lower",
    "lt",
    "mapping",
    "ne",
    "none",
    "number",
    "odd",
    "sameas",
    "sequence",
    "startingwith",
    "string",
    "true",
    "undefined",
    "upper",
];

/// Functions an expression may call.
pub(super) const FUNCTIONS: [&str; 2] = ["dict", "range"];

static ENVIRONMENT: LazyLock<Environment<'static>> = LazyLock::new(|| {
    let mut env = Environment::new();
    env.set_undefined_behavior(UndefinedBehavior::Strict);
    env.set_fuel(Some(FUEL));
    for markup in ["safe", "escape", "e", "pprint"] {
        env.remove_filter(markup);
    }
    for stateful in ["debug", "namespace"] {
        env.remove_global(stateful);
    }
    env.add_filter("default", default);
    env.add_filter("d", default);
    env.add_filter("tojson", tojson);
    env.add_function("_get", |shown: &str, base: Value, steps: Rest<Value>| {
        descend(shown, base, &steps, true)
    });
    env.add_function("_opt", |shown: &str, base: Value, steps: Rest<Value>| {
        descend(shown, base, &steps, false)
    });
    env
});

/// A path an expression reads under a name of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Var {
    /// Number of the lookup.
    pub(super) lookup: usize,
    /// Missing is undefined instead of an error.
    pub(super) lenient: bool,
}

/// A compiled expression.
pub(super) struct Program {
    expression: Expression<'static, 'static>,
    vars: Vec<Var>,
}

impl fmt::Debug for Program {
    /// Without the environment, which all programs share.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program").field("vars", &self.vars).finish_non_exhaustive()
    }
}

impl Program {
    /// Compiles `source`, whose names are `_v0`, `_v1`, … for `vars`. Needs a deep stack.
    pub(super) fn compile(source: String, vars: Vec<Var>) -> Result<Self, String> {
        match ENVIRONMENT.compile_expression_owned(source) {
            Ok(expression) => Ok(Self { expression, vars }),
            Err(e) => Err(format!("not a valid expression: {}", e.detail().unwrap_or("syntax error"))),
        }
    }

    /// Appends the result as JSON text.
    pub(super) fn json(&self, found: &mut Found<'_, '_>, out: &mut Vec<u8>) -> Result<(), ExprError> {
        guarded(|| to_json(&self.run(found)?, out))
    }

    /// Appends the result as the inside of a JSON string.
    pub(super) fn text(&self, found: &mut Found<'_, '_>, out: &mut Vec<u8>) -> Result<(), ExprError> {
        guarded(|| to_text(&self.run(found)?, out))
    }

    fn run(&self, found: &mut Found<'_, '_>) -> Result<Value, ExprError> {
        let mut values = Vec::with_capacity(self.vars.len());
        for var in &self.vars {
            values.push(match found.value(var.lookup) {
                Ok(Some(value)) => value,
                Ok(None) if var.lenient => Value::UNDEFINED,
                Ok(None) => invalid(found.missing(var.lookup)),
                // Only raised if the expression comes to read it.
                Err(e) => invalid(e),
            });
        }
        let value = self.expression.eval(Value::from_object(Vars(values))).map_err(|e| explain(&e))?;
        if value.is_undefined() {
            return Err(failed(
                "the expression has no value (an 'if' without 'else', or an empty list's first item?)",
            ));
        }
        Ok(value)
    }
}

/// The evaluator is known to panic on overflows where those are checked, at once or when a lazy result is read.
/// An expression must not take its run along.
fn guarded(work: impl FnOnce() -> Result<(), ExprError>) -> Result<(), ExprError> {
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(failed("the expression could not be evaluated")))
}

fn failed(message: impl Into<String>) -> ExprError {
    ExprError { code: "expression_failed", message: message.into() }
}

/// A value that raises `error` when it is read.
fn invalid(error: ExprError) -> Value {
    Value::from(raise(error))
}

fn raise(error: ExprError) -> Error {
    Error::new(ErrorKind::InvalidOperation, error.message.clone()).with_source(error)
}

fn explain(error: &Error) -> ExprError {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(e) = cause {
        if let Some(own) = e.downcast_ref::<ExprError>() {
            return own.clone();
        }
        cause = e.source();
    }
    if error.kind() == ErrorKind::OutOfFuel {
        return failed("the expression does more work than is allowed");
    }
    match error.detail() {
        Some(detail) => failed(format!("{}: {detail}", error.kind())),
        None => failed(error.kind().to_string()),
    }
}

/// The values of `_v0`, `_v1`, …
#[derive(Debug)]
struct Vars(Vec<Value>);

impl Object for Vars {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        key.as_str().and_then(|name| self.get_value_by_str(name))
    }

    fn get_value_by_str(self: &Arc<Self>, name: &str) -> Option<Value> {
        self.0.get(name.strip_prefix("_v")?.parse::<usize>().ok()?).cloned()
    }
}

/// `value | default(other)`: other where value is missing or null.
fn default(value: &Value, other: Option<Value>) -> Value {
    if value.is_undefined() || value.is_none() {
        other.unwrap_or_else(|| Value::from(""))
    } else {
        value.clone()
    }
}

/// `value | tojson`: its JSON text, for text that is JSON itself.
fn tojson(value: &Value) -> Result<String, Error> {
    let mut out = Vec::new();
    to_json(value, &mut out).map_err(raise)?;
    String::from_utf8(out).map_err(|_| Error::from(ErrorKind::InvalidOperation))
}

/// Goes down computed steps behind a path.
fn descend(shown: &str, base: Value, steps: &[Value], strict: bool) -> Result<Value, Error> {
    let mut at = base;
    for (n, step) in steps.iter().enumerate() {
        let next = if at.is_undefined() || at.is_none() { Value::UNDEFINED } else { at.get_item(step)? };
        if next.is_undefined() {
            if !strict {
                return Ok(next);
            }
            let path = steps[..=n].iter().fold(shown.to_owned(), |shown, step| match step.as_str() {
                Some(key) => super::analyse::show_step(shown, key),
                None => format!("{shown}[{step}]"),
            });
            return Err(raise(super::lookup::missing(&path)));
        }
        at = next;
    }
    Ok(at)
}

/// A value from JSON text. Numbers it would have to round are refused.
pub(super) fn from_json(json: &[u8], shown: &str) -> Result<Value, ExprError> {
    let broken = |e: String| failed(format!("{shown} cannot be read: {e}"));
    let text = json::utf8(json).map_err(broken)?;
    let mut reader = Reader::new(text, MAX_DEPTH);
    match reader.next().map_err(|e| broken(e.describe(text)))? {
        Some(first) => read(first, &mut reader, shown),
        None => Ok(Value::from(())),
    }
}

fn read<'a>(token: Token<'a>, reader: &mut Reader<'a>, shown: &str) -> Result<Value, ExprError> {
    let broken = |e: String| failed(format!("{shown} cannot be read: {e}"));
    Ok(match token {
        Token::Null | Token::ArrayEnd | Token::ObjectEnd => Value::from(()),
        Token::Bool(b) => Value::from(b),
        Token::Number(token) => number(token, shown)?,
        Token::String(text) | Token::Key(text) => {
            Value::from(text.decode().map_err(|e| broken(e.to_string()))?.as_ref())
        }
        Token::ArrayStart => {
            let mut items = Vec::new();
            while let Some(item) = reader.next().map_err(|e| broken(e.message))? {
                if item == Token::ArrayEnd {
                    break;
                }
                items.push(read(item, reader, shown)?);
            }
            Value::from(items)
        }
        Token::ObjectStart => {
            let mut entries: IndexMap<Value, Value> = IndexMap::new();
            while let Some(Token::Key(key)) = reader.next().map_err(|e| broken(e.message))? {
                let key = Value::from(key.decode().map_err(|e| broken(e.to_string()))?.as_ref());
                if let Some(first) = reader.next().map_err(|e| broken(e.message))? {
                    entries.insert(key, read(first, reader, shown)?);
                }
            }
            Value::from_object(entries)
        }
    })
}

fn number(token: &str, shown: &str) -> Result<Value, ExprError> {
    if !token.contains(['.', 'e', 'E']) {
        if let Ok(n) = token.parse::<i64>() {
            return Ok(Value::from(n));
        }
        if let Ok(n) = token.parse::<i128>() {
            return Ok(Value::from(n));
        }
        if let Ok(n) = token.parse::<u128>() {
            return Ok(Value::from(n));
        }
    } else if let Ok(n) = token.parse::<f64>()
        && n.is_finite()
        && json::same_number(token, &float(n))
    {
        return Ok(Value::from(n));
    }
    let cut: String = token.chars().take(60).collect();
    Err(ExprError {
        code: "number_out_of_range",
        message: format!(
            "{shown} holds the number {cut}, which a computed expression would have to round; a plain path copies it"
        ),
    })
}

/// The shortest text that reads back as the same float.
fn float(n: f64) -> String {
    serde_json::Number::from_f64(n).map_or_else(|| n.to_string(), |n| n.to_string())
}

/// Appends a computed value as JSON text.
fn to_json(value: &Value, out: &mut Vec<u8>) -> Result<(), ExprError> {
    write(value, out, 0)
}

fn write(value: &Value, out: &mut Vec<u8>, depth: usize) -> Result<(), ExprError> {
    if depth > MAX_DEPTH {
        return Err(too_deep());
    }
    if out.len() > 8 * crate::model::payload::PAYLOAD_MAX {
        return Err(ExprError {
            code: "value_too_large",
            message: format!(
                "the value has more than {} bytes; the limit is {} (1 MiB)",
                out.len(),
                crate::model::payload::PAYLOAD_MAX
            ),
        });
    }
    match value.kind() {
        ValueKind::None => out.extend_from_slice(b"null"),
        ValueKind::Bool => out.extend_from_slice(if value.is_true() { b"true" } else { b"false" }),
        ValueKind::Number => out.extend_from_slice(number_text(value)?.as_bytes()),
        ValueKind::String => json::write_string(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq | ValueKind::Iterable => {
            out.push(b'[');
            for (n, item) in value.try_iter().map_err(|e| explain(&e))?.enumerate() {
                if n > 0 {
                    out.push(b',');
                }
                write(&item, out, depth + 1)?;
            }
            out.push(b']');
        }
        ValueKind::Map => {
            out.push(b'{');
            for (n, key) in value.try_iter().map_err(|e| explain(&e))?.enumerate() {
                if n > 0 {
                    out.push(b',');
                }
                let Some(name) = key.as_str() else {
                    return Err(failed(format!("a map has the key {key}, which is no text")));
                };
                json::write_string(name, out);
                out.push(b':');
                write(&value.get_item(&key).map_err(|e| explain(&e))?, out, depth + 1)?;
            }
            out.push(b'}');
        }
        ValueKind::Undefined => return Err(failed("the value holds something that is missing")),
        ValueKind::Invalid => {
            return Err(value.try_iter().err().map_or_else(|| failed("not a value"), |e| explain(&e)));
        }
        other => return Err(failed(format!("the value is {other}, which is no JSON"))),
    }
    Ok(())
}

pub(super) fn too_deep() -> ExprError {
    ExprError { code: "value_too_deep", message: format!("the value is nested deeper than {MAX_DEPTH}") }
}

fn number_text(value: &Value) -> Result<String, ExprError> {
    if value.is_integer() {
        return Ok(value.to_string());
    }
    match f64::try_from(value.clone()) {
        Ok(n) if n.is_finite() => Ok(float(n)),
        _ => Err(ExprError {
            code: "number_out_of_range",
            message: format!("the number {value} has no JSON form"),
        }),
    }
}

/// Appends a computed value as the inside of a JSON string.
fn to_text(value: &Value, out: &mut Vec<u8>) -> Result<(), ExprError> {
    match value.kind() {
        ValueKind::String => json::write_escaped(value.as_str().unwrap_or_default(), out),
        ValueKind::Bool | ValueKind::Number => to_json(value, out)?,
        kind => return Err(failed(format!("{kind} cannot stand inside text"))),
    }
    Ok(())
}

/// Listed filters, tests and functions that the environment does not have.
#[cfg(test)]
pub(super) fn missing_builtins() -> Vec<String> {
    let has = |kind: &str, name: &str| {
        let source = format!("'{name}' is {kind}");
        ENVIRONMENT.compile_expression_owned(source).and_then(|e| e.eval(())).is_ok_and(|v| v.is_true())
    };
    let mut missing: Vec<String> = Vec::new();
    missing.extend(FILTERS.iter().filter(|name| !has("filter", name)).map(|n| (*n).to_owned()));
    missing.extend(TESTS.iter().filter(|name| !has("test", name)).map(|n| (*n).to_owned()));
    let globals: Vec<&str> = ENVIRONMENT.globals().map(|(name, _)| name).collect();
    missing.extend(FUNCTIONS.iter().filter(|name| !globals.contains(name)).map(|n| (*n).to_owned()));
    missing
}

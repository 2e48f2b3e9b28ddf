//! JSON Schema of a workflow's input.
//!
//! Values are checked as the validator reads them: integers beyond 64 bits and floats are approximated there
//! (only there; what passes is stored as it came). References reach only inside the schema itself, patterns are
//! matched in linear time, so look-around and back-references are refused.

use crate::model::error::Fault;
use crate::model::json::{self, Reader, SyntaxError, Token};
use jsonschema::{PatternOptions, Retrieve, Uri, Validator};
use serde_json::Value;
use std::collections::BTreeMap;

/// Memory a compiled pattern may take, in bytes.
const PATTERN_SIZE: usize = 1 << 20;
/// The validator recurses with the value; what is nested deeper is checked on a deep stack.
const SHALLOW: usize = 24;
/// Deepest schema: as deep as a document may be.
const DEEPEST: usize = 16 + json::MAX_DEPTH;
/// Most faults of one input that are told.
const MAX_FAULTS: usize = 100;
/// Messages about inputs larger than this, in bytes, do not repeat the values.
const LARGE: usize = 64 << 10;
/// Longest message of a fault, in characters.
const MAX_MESSAGE: usize = 500;
/// Most schemas that may apply to one and the same value, counted through references.
const MAX_APPLIED: u64 = 10_000;

/// A JSON Schema, compiled.
#[derive(Debug)]
pub struct InputSchema {
    validator: Validator,
}

impl InputSchema {
    /// Compiles a schema (JSON text). `Err` says what is wrong with it.
    pub(crate) fn compile(schema: &[u8]) -> Result<Self, String> {
        let schema = value(schema)?;
        if !schema.is_object() && !schema.is_boolean() {
            return Err("a JSON Schema is an object".to_owned());
        }
        Applied { root: &schema, known: BTreeMap::new() }.all(&schema, "")?;
        jsonschema::options()
            .with_retriever(NoRetriever)
            .with_pattern_options(
                PatternOptions::regex().size_limit(PATTERN_SIZE).dfa_size_limit(PATTERN_SIZE),
            )
            .build(&schema)
            .map(|validator| Self { validator })
            .map_err(|e| {
                let at = e.instance_path().to_string();
                let at = if at.is_empty() { String::new() } else { format!(" at {at}") };
                format!("not a valid JSON Schema{at}: {}", cut(&e.to_string()))
            })
    }

    /// Every fault of `input` (JSON text), with JSON-pointer paths; at most 100.
    pub fn check(&self, input: &[u8]) -> Vec<Fault> {
        if json::depth(input) > SHALLOW {
            return super::on_deep_stack(|| self.check_here(input)).unwrap_or_else(|| {
                vec![Fault {
                    path: String::new(),
                    line: None,
                    message: "the input could not be checked".to_owned(),
                }]
            });
        }
        self.check_here(input)
    }

    fn check_here(&self, input: &[u8]) -> Vec<Fault> {
        let large = input.len() > LARGE;
        let input = match value(input) {
            Ok(input) => input,
            Err(message) => return vec![Fault { path: String::new(), line: None, message }],
        };
        let mut faults: Vec<Fault> = self
            .validator
            .iter_errors(&input)
            .take(MAX_FAULTS)
            .map(|e| Fault {
                path: e.instance_path().to_string(),
                line: None,
                message: if large { cut(&e.masked().to_string()) } else { cut(&e.to_string()) },
            })
            .collect();
        faults.sort();
        faults
    }
}

/// The validator's view of a JSON text.
fn value(json: &[u8]) -> Result<Value, String> {
    let text = json::utf8(json)?;
    let mut reader = Reader::new(text, DEEPEST);
    match reader.next().map_err(|e| e.describe(text))? {
        Some(first) => read(first, &mut reader).map_err(|e| e.describe(text)),
        None => Ok(Value::Null),
    }
}

fn read<'a>(token: Token<'a>, reader: &mut Reader<'a>) -> Result<Value, SyntaxError> {
    Ok(match token {
        Token::Null | Token::ArrayEnd | Token::ObjectEnd => Value::Null,
        Token::Bool(b) => Value::Bool(b),
        Token::Number(token) => {
            let beyond = if token.starts_with('-') { f64::MIN } else { f64::MAX };
            token.parse().map_or_else(|_| Value::from(beyond), Value::Number)
        }
        Token::String(text) | Token::Key(text) => Value::String(text.lossy().into_owned()),
        Token::ArrayStart => {
            let mut items = Vec::new();
            while let Some(item) = reader.next()?.filter(|t| *t != Token::ArrayEnd) {
                items.push(read(item, reader)?);
            }
            Value::Array(items)
        }
        Token::ObjectStart => {
            let mut map = serde_json::Map::new();
            while let Some(Token::Key(key)) = reader.next()? {
                if let Some(first) = reader.next()? {
                    map.insert(key.lossy().into_owned(), read(first, reader)?);
                }
            }
            Value::Object(map)
        }
    })
}

fn cut(message: &str) -> String {
    match message.char_indices().nth(MAX_MESSAGE) {
        Some((at, _)) => format!("{}…", &message[..at]),
        None => message.to_owned(),
    }
}

struct NoRetriever;

impl Retrieve for NoRetriever {
    fn retrieve(&self, uri: &Uri<String>) -> Result<Value, Box<dyn std::error::Error + Send + Sync>> {
        Err(format!("{uri} is outside of this schema, and nothing is fetched; put it under $defs").into())
    }
}

/// Counts how many schemas apply to one value when a schema applies to it: `allOf` and its like and `$ref` stay
/// on the value, and a chain of them can double at every link or never end.
struct Applied<'s> {
    root: &'s Value,
    /// By JSON pointer; `None` while it is being counted.
    known: BTreeMap<String, Option<(u64, usize)>>,
}

/// Longest chain of schemas that stay on one value.
const MAX_CHAIN: usize = 16;

impl Applied<'_> {
    /// Counts for every schema below `node`.
    fn all(&mut self, node: &Value, pointer: &str) -> Result<(), String> {
        match node {
            Value::Object(map) => {
                for word in ["$dynamicRef", "$recursiveRef"] {
                    if map.get(word).is_some_and(Value::is_string) {
                        return Err(format!("{pointer}/{word}: {word} is not supported; use $ref"));
                    }
                }
                if let Some(Value::String(target)) = map.get("$ref")
                    && target != "#"
                    && !target.starts_with("#/")
                {
                    return Err(format!(
                        "{pointer}/$ref: {target:?} reaches outside; only references into this schema (#/…) are followed"
                    ));
                }
                if !pointer.is_empty() && map.get("$id").is_some_and(Value::is_string) {
                    return Err(format!("{pointer}/$id: only the schema itself may have an $id"));
                }
                self.of(pointer, 0)?;
                for (key, value) in map {
                    if !matches!(key.as_str(), "enum" | "const" | "default" | "examples") {
                        self.all(value, &child(pointer, key))?;
                    }
                }
            }
            Value::Array(items) => {
                for (n, item) in items.iter().enumerate() {
                    self.all(item, &format!("{pointer}/{n}"))?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// How many schemas apply where the one at `pointer` does, and how long their longest chain is.
    fn of(&mut self, pointer: &str, above: usize) -> Result<(u64, usize), String> {
        match self.known.get(pointer) {
            Some(Some(counted)) => return Ok(*counted),
            Some(None) => return Err(format!("{pointer} refers to itself without going into the value")),
            None => {}
        }
        let too_many =
            || format!("{pointer}: too many schemas apply to one value, through references or allOf");
        if above > MAX_CHAIN {
            return Err(too_many());
        }
        self.known.insert(pointer.to_owned(), None);
        let mut next = Vec::new();
        if let Some(Value::Object(map)) = self.root.pointer(pointer) {
            for (key, value) in map {
                let here = child(pointer, key);
                match (key.as_str(), value) {
                    ("$ref", Value::String(target)) => {
                        next.extend(target.strip_prefix('#').map(percent_decoded));
                    }
                    ("not" | "if" | "then" | "else", _) => next.push(here),
                    ("allOf" | "anyOf" | "oneOf", Value::Array(items)) => {
                        next.extend((0..items.len()).map(|n| format!("{here}/{n}")));
                    }
                    ("dependentSchemas" | "dependencies", Value::Object(map)) => {
                        next.extend(map.keys().map(|key| child(&here, key)));
                    }
                    _ => {}
                }
            }
        }
        let (mut count, mut chain) = (1u64, 1);
        for pointer in next {
            let (more, longer) = self.of(&pointer, above + 1)?;
            count = count.saturating_add(more);
            chain = chain.max(longer + 1);
        }
        if count > MAX_APPLIED || chain > MAX_CHAIN {
            return Err(too_many());
        }
        self.known.insert(pointer.to_owned(), Some((count, chain)));
        Ok((count, chain))
    }
}

fn child(pointer: &str, key: &str) -> String {
    format!("{pointer}/{}", key.replace('~', "~0").replace('/', "~1"))
}

fn percent_decoded(text: &str) -> String {
    let bytes = text.as_bytes();
    let (mut out, mut i) = (Vec::with_capacity(bytes.len()), 0);
    while i < bytes.len() {
        let hex =
            text.get(i + 1..i + 3).filter(|_| bytes[i] == b'%').and_then(|h| u8::from_str_radix(h, 16).ok());
        out.push(hex.unwrap_or(bytes[i]));
        i += if hex.is_some() { 3 } else { 1 };
    }
    String::from_utf8_lossy(&out).into_owned()
}

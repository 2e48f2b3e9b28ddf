//! Text to [`Node`]: size, encoding and byte order mark for both formats, then JSON or YAML.

use super::Format;
use super::node::{Entry, Kind, MAX_DEPTH, Node};
use super::yaml;
use crate::model::error::Fault;
use crate::model::json::{Reader, SyntaxError, Text, Token};

/// Largest document, in bytes.
pub(crate) const MAX_BYTES: usize = 1 << 20;

/// Reads a document's text. A fault here is the only one: nothing behind it was seen.
pub(crate) fn load(text: &[u8], format: Format) -> Result<Node, Fault> {
    if text.len() > MAX_BYTES {
        return Err(whole(format!(
            "the document has {} bytes; the limit is {MAX_BYTES} (1 MiB)",
            text.len()
        )));
    }
    let text = match std::str::from_utf8(text) {
        Ok(text) => text,
        Err(_) if text.starts_with(&[0xff, 0xfe]) || text.starts_with(&[0xfe, 0xff]) => {
            return Err(whole("the document is UTF-16; save it as UTF-8".to_owned()));
        }
        Err(e) => {
            let at = e.valid_up_to();
            let before = std::str::from_utf8(&text[..at]).unwrap_or_default();
            let line = before.matches('\n').count() as u32 + 1;
            let message = format!("the document is not UTF-8 (byte {at})");
            return Err(Fault {
                path: String::new(),
                line: (format == Format::Yaml).then_some(line),
                message,
            });
        }
    };
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    if text.starts_with('\u{feff}') {
        let message =
            "the document begins with more than one byte order mark (U+FEFF); remove them".to_owned();
        return Err(Fault { path: String::new(), line: (format == Format::Yaml).then_some(1), message });
    }
    match format {
        Format::Json => json(text),
        Format::Yaml => yaml::load(text),
    }
}

/// A fault of the document as a whole.
pub(crate) fn whole(message: String) -> Fault {
    Fault { path: String::new(), line: None, message }
}

fn json(text: &str) -> Result<Node, Fault> {
    let mut reader = Reader::new(text, MAX_DEPTH);
    let result = (|| {
        let first = reader.next()?;
        let node = match first {
            Some(token) => value(token, &mut reader)?,
            None => Node { line: 0, kind: Kind::Null },
        };
        reader.next()?;
        Ok::<_, SyntaxError>(node)
    })();
    result.map_err(|e| whole(format!("the document is not valid JSON: {}", e.describe(text))))
}

fn value<'a>(token: Token<'a>, reader: &mut Reader<'a>) -> Result<Node, SyntaxError> {
    let kind = match token {
        Token::Null | Token::ArrayEnd | Token::ObjectEnd => Kind::Null,
        Token::Bool(b) => Kind::Bool(b),
        Token::Number(token) => Kind::Number(token.to_owned()),
        Token::String(text) | Token::Key(text) => Kind::String(decode(text, reader)?),
        Token::ArrayStart => {
            let mut items = Vec::new();
            while let Some(token) = reader.next()?.filter(|t| *t != Token::ArrayEnd) {
                items.push(value(token, reader)?);
            }
            Kind::List(items)
        }
        Token::ObjectStart => {
            let mut entries = Vec::new();
            while let Some(Token::Key(key)) = reader.next()? {
                let key = decode(key, reader)?;
                if let Some(token) = reader.next()? {
                    entries.push(Entry { key, line: 0, value: value(token, reader)? });
                }
            }
            Kind::Map(entries)
        }
    };
    Ok(Node { line: 0, kind })
}

fn decode(text: Text<'_>, reader: &Reader<'_>) -> Result<String, SyntaxError> {
    match text.decode() {
        Ok(text) => Ok(text.into_owned()),
        Err(e) => Err(SyntaxError { at: reader.position().saturating_sub(1), message: e.to_string() }),
    }
}

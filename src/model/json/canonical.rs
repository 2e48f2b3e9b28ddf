//! One text per JSON value: equal values have equal bytes. For digests and comparisons, never for storage.
//!
//! - Objects have sorted keys; of equal keys the last one stands.
//! - A number is its exact decimal value: `1.0`, `1` and `10e-1` are one, `9007199254740993` and
//!   `9007199254740992` are two, at any length. `-0` is `0`.
//! - A string has one way to be written; a surrogate that stands alone keeps its escape.

use super::{MAX_DEPTH, Reader, SyntaxError, Text, Token, utf8};
use sha2::Digest as _;
use std::collections::BTreeMap;

/// The canonical text of the value in `bytes`.
///
/// # Errors
/// `bytes` are not one valid JSON text.
pub fn canonical(bytes: &[u8]) -> Result<Vec<u8>, String> {
    let text = utf8(bytes)?;
    let mut reader = Reader::new(text, MAX_DEPTH);
    let mut out = Vec::with_capacity(bytes.len());
    let all = (|| {
        if let Some(first) = reader.next()? {
            write(first, &mut reader, &mut out)?;
        }
        reader.next()
    })();
    match all {
        Ok(_) => Ok(out),
        Err(e) => Err(e.describe(text)),
    }
}

/// 128 bits that name `parts`: other parts, other bits. No two lists of parts run together.
pub fn digest(parts: &[&[u8]]) -> [u8; 16] {
    let mut hash = sha2::Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    let mut out = [0; 16];
    out.copy_from_slice(&hash.finalize()[..16]);
    out
}

fn write<'a>(token: Token<'a>, reader: &mut Reader<'a>, out: &mut Vec<u8>) -> Result<(), SyntaxError> {
    match token {
        Token::Null => out.extend_from_slice(b"null"),
        Token::Bool(true) => out.extend_from_slice(b"true"),
        Token::Bool(false) => out.extend_from_slice(b"false"),
        Token::Number(n) => out.extend_from_slice(&number(n)),
        Token::String(s) | Token::Key(s) => string(s, out),
        Token::ArrayStart => {
            out.push(b'[');
            let mut first = true;
            while let Some(item) = reader.next()? {
                if item == Token::ArrayEnd {
                    break;
                }
                if !std::mem::take(&mut first) {
                    out.push(b',');
                }
                write(item, reader, out)?;
            }
            out.push(b']');
        }
        Token::ObjectStart => {
            let mut entries = BTreeMap::new();
            while let Some(Token::Key(key)) = reader.next()? {
                let mut name = Vec::with_capacity(key.raw().len() + 2);
                string(key, &mut name);
                let mut value = Vec::new();
                if let Some(first) = reader.next()? {
                    write(first, reader, &mut value)?;
                }
                entries.insert(name, value);
            }
            out.push(b'{');
            for (n, (name, value)) in entries.iter().enumerate() {
                if n > 0 {
                    out.push(b',');
                }
                out.extend_from_slice(name);
                out.push(b':');
                out.extend_from_slice(value);
            }
            out.push(b'}');
        }
        Token::ArrayEnd | Token::ObjectEnd => {}
    }
    Ok(())
}

fn string(text: Text<'_>, out: &mut Vec<u8>) {
    if let Ok(decoded) = text.decode() {
        super::write_string(&decoded, out);
        return;
    }
    out.push(b'"');
    let mut buffer = [0; 4];
    let always: Result<(), std::convert::Infallible> = text.units(&mut |unit| {
        match unit {
            Ok(c) => super::write_escaped(c.encode_utf8(&mut buffer), out),
            Err(lone) => out.extend_from_slice(format!("\\u{lone:04x}").as_bytes()),
        }
        Ok(())
    });
    match always {
        Ok(()) => out.push(b'"'),
    }
}

/// `-`, the digits without zeros at either end, and the power of ten they are multiplied by.
fn number(token: &str) -> Vec<u8> {
    let (negative, rest) = match token.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, token),
    };
    let (mantissa, exponent) = rest.split_once(['e', 'E']).unwrap_or((rest, "0"));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let mut digits = format!("{whole}{fraction}");
    digits.drain(..digits.len() - digits.trim_start_matches('0').len());
    if digits.is_empty() {
        return b"0".to_vec();
    }
    // No exponent that anybody means has more than 30 digits; beyond, equal is what is written alike.
    let Ok(exponent) = exponent.parse::<i128>() else { return token.to_ascii_lowercase().into_bytes() };
    let significant = digits.trim_end_matches('0').len();
    let exponent =
        exponent.saturating_sub(fraction.len() as i128).saturating_add((digits.len() - significant) as i128);
    digits.truncate(significant);
    let mut out = String::with_capacity(digits.len() + 4);
    if negative {
        out.push('-');
    }
    out.push_str(&digits);
    if exponent != 0 {
        out.push('e');
        out.push_str(&exponent.to_string());
    }
    out.into_bytes()
}

/// Whether two number tokens are the same decimal value.
pub fn same_number(a: &str, b: &str) -> bool {
    number(a) == number(b)
}

//! From a [`Payload`] to its JSON text.

use super::Payloads;
use crate::model::payload::{Field, INLINE_MAX, Payload};
use bytes::Bytes;

/// JSON null.
pub(super) const NULL: Bytes = Bytes::from_static(b"null");

/// The JSON text of `payload`; the field that has to be at hand first, if it is not.
///
/// A path that leads nowhere is null: it was walked once when it was stored, and payloads never change.
pub(super) fn resolve(
    payload: &Payload,
    written: &[(Field, Bytes)],
    source: &dyn Payloads,
) -> Result<Bytes, Field> {
    match payload {
        Payload::Null => Ok(NULL),
        Payload::Inline(json) => Ok(json.clone()),
        Payload::Stored { field, .. } => written
            .iter()
            .find(|(f, _)| f == field)
            .map(|(_, json)| json.clone())
            .or_else(|| source.get(field))
            .ok_or_else(|| field.clone()),
        Payload::Path { base, steps } => {
            let json = resolve(base, written, source)?;
            Ok(walk(&json, steps).unwrap_or(NULL))
        }
    }
}

/// Where `json` is to stand: inside the record if it is small, else as `field`, which is added to `written`.
pub(super) fn keep(json: Bytes, field: impl FnOnce() -> Field, written: &mut Vec<(Field, Bytes)>) -> Payload {
    if json.is_empty() || json == NULL {
        return Payload::Null;
    }
    if json.len() <= INLINE_MAX {
        // A copy: what came may be a small part of a network buffer, which would be kept alive with it.
        return Payload::Inline(Bytes::copy_from_slice(&json));
    }
    let field = field();
    let size = u32::try_from(json.len()).unwrap_or(u32::MAX);
    written.push((field.clone(), json));
    Payload::Stored { field, size }
}

/// The value behind `steps`, cut out of `json` without copying; none if there is nothing.
pub(super) fn walk(json: &Bytes, steps: &[String]) -> Option<Bytes> {
    let value = crate::model::json::walk(json, steps).ok()??;
    Some(json.slice_ref(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(json: &str, steps: &[&str]) -> Option<String> {
        let steps: Vec<String> = steps.iter().map(|s| (*s).to_owned()).collect();
        walk(&Bytes::copy_from_slice(json.as_bytes()), &steps).map(|b| String::from_utf8(b.to_vec()).unwrap())
    }

    #[test]
    fn a_path_keeps_the_text_it_points_at() {
        let json = r#" {"a": [1.0, {"b\n": 9007199254740993 , "o": {} }], "l": []} "#;
        assert_eq!(at(json, &["a", "0"]).as_deref(), Some("1.0"));
        assert_eq!(at(json, &["a", "1", "b\n"]).as_deref(), Some("9007199254740993"));
        assert_eq!(at(json, &["a", "1", "o"]).as_deref(), Some("{}"));
        assert_eq!(at(json, &["l"]).as_deref(), Some("[]"));
        assert_eq!(at(json, &["a", "2"]), None);
        assert_eq!(at(json, &["a", "x"]), None);
        assert_eq!(at(json, &["a", "0", "x"]), None);
    }

    #[test]
    fn only_values_over_the_inline_limit_are_stored() {
        let mut written = Vec::new();
        let small = Bytes::from(format!("\"{}\"", "x".repeat(INLINE_MAX - 2)));
        let large = Bytes::from(format!("\"{}\"", "x".repeat(INLINE_MAX - 1)));
        assert_eq!(keep(small.clone(), || Field::new("o"), &mut written), Payload::Inline(small));
        assert_eq!(keep(NULL, || Field::new("o"), &mut written), Payload::Null);
        assert!(written.is_empty());
        let stored = keep(large.clone(), || Field::new("o3"), &mut written);
        assert_eq!(stored, Payload::Stored { field: Field::new("o3"), size: 65 });
        assert_eq!(written, vec![(Field::new("o3"), large)]);
    }
}

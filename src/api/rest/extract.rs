//! Reading requests: path segments, query parameters, bodies. Whatever does not fit is refused with the
//! name of the part and what is wrong with it; nothing unknown is ignored.

use super::words;
use crate::api::error::{Refused, invalid, invalid_all};
use crate::api::limits::{DOCUMENT_MAX, DRAIN_MAX, PAGE_DEFAULT, PAGE_MAX, WAIT_MAX_SECS};
use crate::api::meter::Held;
use crate::api::{Doors, Options};
use crate::app::AppError;
use crate::model::document::Format;
use crate::model::duration;
use crate::model::error::{ErrorCode, Fault};
use crate::model::json;
use crate::model::time::Span;
use axum::body::Body;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use bytes::{Buf as _, Bytes, BytesMut};
use http::request::Parts;
use http::{HeaderMap, header};
use http_body_util::BodyExt as _;
use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::fmt::Display;

/// The variable segments of a path, decoded.
#[derive(Debug)]
pub(crate) struct Segments(Vec<(String, String)>);

impl<S: Send + Sync> FromRequestParts<S> for Segments {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refused> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(pairs)) => Ok(Self(pairs)),
            Err(error) => Err(Refused(invalid("path", error.body_text()))),
        }
    }
}

impl Segments {
    /// The segment `name`, read by `parse`.
    pub(crate) fn parse<T, E: Display>(
        &self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Result<T, Refused> {
        let text = self.text(name);
        parse(text).map_err(|e| Refused(invalid(name, e.to_string())))
    }

    /// The segment `name` as it is.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.0.iter().find(|(n, _)| n == name).map_or("", |(_, value)| value)
    }
}

/// Query parameters. Take what the route knows, then call [`Params::finish`], which refuses the rest.
#[derive(Debug)]
pub(crate) struct Params {
    pairs: Vec<(String, String)>,
    faults: Vec<Fault>,
}

impl<S: Send + Sync> FromRequestParts<S> for Params {
    type Rejection = Refused;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refused> {
        match Query::from_request_parts(parts, state).await {
            Ok(Query(pairs)) => Ok(Self { pairs, faults: Vec::new() }),
            Err(error) => Err(Refused(invalid("query", error.body_text()))),
        }
    }
}

impl Params {
    fn fault(&mut self, name: &str, message: impl Into<String>) {
        self.faults.push(Fault { path: name.to_owned(), line: None, message: message.into() });
    }

    /// A parameter that may be given any number of times.
    fn all(&mut self, name: &str) -> Vec<String> {
        self.pairs.extract_if(.., |(n, _)| n == name).map(|(_, value)| value).collect()
    }

    /// A parameter that may be given once.
    pub(crate) fn text(&mut self, name: &str) -> Option<String> {
        let mut values = self.all(name);
        if values.len() > 1 {
            self.fault(name, "is given more than once");
        }
        values.pop()
    }

    /// A parameter read by `parse`.
    pub(crate) fn parse<T, E: Display>(
        &mut self,
        name: &str,
        parse: impl FnOnce(&str) -> Result<T, E>,
    ) -> Option<T> {
        let text = self.text(name)?;
        match parse(&text) {
            Ok(value) => Some(value),
            Err(error) => {
                self.fault(name, error.to_string());
                None
            }
        }
    }

    /// `true` or `false`; false if not given.
    pub(crate) fn flag(&mut self, name: &str) -> bool {
        self.parse(name, |text| match text {
            "true" => Ok(true),
            "false" => Ok(false),
            other => Err(format!("{other:?} is neither true nor false")),
        })
        .unwrap_or(false)
    }

    /// `wait`: a duration of at most a minute.
    pub(crate) fn wait(&mut self) -> Option<Span> {
        self.parse("wait", wait)
    }

    /// `limit` and `cursor` of a list.
    pub(crate) fn page(&mut self) -> (u32, Option<String>) {
        let limit = self.parse("limit", |text| match text.parse() {
            Ok(n @ 1..=PAGE_MAX) => Ok(n),
            _ => Err(format!("{text:?} is not a number from 1 to {PAGE_MAX}")),
        });
        (limit.unwrap_or(PAGE_DEFAULT), self.text("cursor"))
    }

    /// `tag=key:value`, any number of times.
    pub(crate) fn tags(&mut self) -> Vec<(String, String)> {
        let mut tags = Vec::new();
        for text in self.all("tag") {
            match text.split_once(':') {
                Some((key, value)) => tags.push((key.to_owned(), value.to_owned())),
                None => self.fault("tag", format!("{text:?} is not of the form key:value")),
            }
        }
        tags
    }

    /// Refuses what was wrong and what nobody asked for.
    pub(crate) fn finish(mut self) -> Result<(), Refused> {
        for (name, _) in std::mem::take(&mut self.pairs) {
            self.fault(&name, "is not a parameter of this call");
        }
        if self.faults.is_empty() { Ok(()) } else { Err(Refused(invalid_all(self.faults))) }
    }
}

/// Reads a duration of at most a minute.
pub(crate) fn wait(text: &str) -> Result<Span, String> {
    let span = duration::parse(text)?;
    if span > Span::secs(WAIT_MAX_SECS) {
        return Err(format!("{text:?} is longer than {WAIT_MAX_SECS}s"));
    }
    Ok(span)
}

/// A JSON body of at most `MAX` bytes, not yet read.
#[derive(Debug)]
pub(crate) struct JsonBody<const MAX: usize>(
    Bytes,
    #[expect(dead_code, reason = "counts the bytes while they are here")] Held,
);

impl<const MAX: usize> FromRequest<Doors> for JsonBody<MAX> {
    type Rejection = Refused;

    async fn from_request(request: Request, doors: &Doors) -> Result<Self, Refused> {
        let kind = media_type(request.headers())?;
        let json = kind.as_deref().is_some_and(|kind| {
            kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json"))
        });
        let wrong = || {
            let message = "the body must be application/json; say so in Content-Type";
            Refused(AppError::new(ErrorCode::UnsupportedMediaType, message))
        };
        if kind.is_some() && !json {
            return Err(wrong());
        }
        let (body, held) = body(request, MAX, &doors.options).await?;
        // Without a type only nothing passes: a page of another origin can send any text without one.
        if json || body.is_empty() { Ok(Self(body, held)) } else { Err(wrong()) }
    }
}

impl<const MAX: usize> JsonBody<MAX> {
    /// Reads the body as `T`; an empty body is `{}`.
    pub(crate) fn read<'a, T: Deserialize<'a>>(&'a self) -> Result<T, Refused> {
        object(if self.0.is_empty() { b"{}" } else { &self.0 })
    }

    /// The whole body as a value of a user, to the byte but for white space around it; empty means null. Whether it
    /// is JSON is looked at by the application.
    pub(crate) fn value(&self) -> Bytes {
        self.0.slice_ref(self.0.trim_ascii())
    }

    /// The text of a value of a user inside the body, to the byte, without copying. No value is empty, which
    /// means null. Size and depth are looked at by the application.
    pub(crate) fn text(&self, value: Option<&RawValue>) -> Bytes {
        value.map(|value| self.0.slice_ref(value.get().as_bytes())).unwrap_or_default()
    }
}

/// Reads a JSON object as `T`: a body, or an item of one.
pub(crate) fn object<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Result<T, Refused> {
    // serde would take a list for a struct, value by value.
    if !text.trim_ascii_start().starts_with(b"{") {
        return Err(Refused(invalid("body", "must be a JSON object")));
    }
    let mut json = serde_json::Deserializer::from_slice(text);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let (path, inner) = (error.path().to_string(), error.inner().to_string());
        Refused(invalid(field(&path, &inner), not_json(text).unwrap_or_else(|| words::plain(&inner))))
    })?;
    json.end().map_err(|error| {
        let message = not_json(text).unwrap_or_else(|| words::plain(&error.to_string()));
        Refused(invalid("body", message))
    })?;
    Ok(value)
}

/// A value that counts as given when it is null, too.
pub(crate) fn even_null<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

/// Why a body is no JSON that we take at all; what stands in a value of a user counts from there.
fn not_json(text: &[u8]) -> Option<String> {
    json::check_within(text, json::MAX_DEPTH + BODY_DEPTH).err().map(|m| format!("is not valid JSON: {m}"))
}

/// How deep a value of a user may stand in a body.
const BODY_DEPTH: usize = 3;

/// A map of texts in which no key is given twice: serde would keep the last and say nothing.
pub(crate) fn each_once<'de, D: Deserializer<'de>>(json: D) -> Result<BTreeMap<String, String>, D::Error> {
    struct Once;
    impl<'de> Visitor<'de> for Once {
        type Value = BTreeMap<String, String>;

        fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("a map")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
            let mut map = BTreeMap::new();
            while let Some((key, value)) = entries.next_entry::<String, String>()? {
                if map.contains_key(&key) {
                    return Err(serde::de::Error::custom(format_args!("duplicate field `{key}`")));
                }
                map.insert(key, value);
            }
            Ok(map)
        }
    }
    json.deserialize_map(Once)
}

/// Where a body does not fit. serde names a field that is missing or doubled only in its message.
fn field(path: &str, message: &str) -> String {
    let named = ["missing field `", "duplicate field `"].iter().find_map(|says| message.strip_prefix(says));
    let named = named.and_then(|rest| rest.split_once('`')).map(|(name, _)| name);
    let path = path.trim_end_matches('?').trim_end_matches('.');
    match (path, named) {
        ("", Some(name)) => name.to_owned(),
        ("", None) => "body".to_owned(),
        (path, Some(name)) => format!("{path}.{name}"),
        (path, None) => path.to_owned(),
    }
}

/// A workflow document and the form its media type names.
#[derive(Debug)]
pub(crate) struct DocumentBody {
    pub(crate) format: Format,
    pub(crate) text: Bytes,
    /// Counts the bytes while they are here.
    _held: Held,
}

impl FromRequest<Doors> for DocumentBody {
    type Rejection = Refused;

    async fn from_request(request: Request, doors: &Doors) -> Result<Self, Refused> {
        let format = match media_type(request.headers())?.as_deref() {
            Some("application/yaml" | "application/x-yaml" | "text/yaml" | "text/x-yaml") => Format::Yaml,
            Some("application/json") => Format::Json,
            _ => {
                let message = "a document is application/yaml or application/json; say which in Content-Type";
                return Err(Refused(AppError::new(ErrorCode::UnsupportedMediaType, message)));
            }
        };
        let (text, held) = body(request, DOCUMENT_MAX, &doors.options).await?;
        Ok(Self { format, text, _held: held })
    }
}

/// The media type in lower case, without parameters. A charset other than UTF-8 (or ASCII, which is part of it) is
/// refused, rather than read as what it is not.
fn media_type(headers: &HeaderMap) -> Result<Option<String>, AppError> {
    let Some(value) = headers.get(header::CONTENT_TYPE) else { return Ok(None) };
    let text = String::from_utf8_lossy(value.as_bytes()).to_ascii_lowercase();
    let mut parts = text.split(';').map(str::trim);
    let kind = parts.next().unwrap_or_default().to_owned();
    let charset = parts.filter_map(|p| p.split_once('=')).find(|(name, _)| name.trim() == "charset");
    match charset.map(|(_, value)| value.trim().trim_matches('"')) {
        None | Some("utf-8" | "utf8" | "us-ascii") => Ok(Some(kind)),
        Some(other) => {
            let message = format!("charset {other:?} in Content-Type is not taken; send the body as UTF-8");
            Err(AppError::new(ErrorCode::UnsupportedMediaType, message))
        }
    }
}

/// Some editors and libraries write this before the text, in UTF-8; it says nothing.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The body, whole, without a byte order mark. Compressed bodies are refused, so no bomb can go off.
async fn body(request: Request, max: usize, options: &Options) -> Result<(Bytes, Held), AppError> {
    let within = options.body_within;
    let mut held = options.meter.body(options.body_memory);
    let headers = request.headers();
    if let Some(encoding) = headers.get(header::CONTENT_ENCODING)
        && !encoding.as_bytes().eq_ignore_ascii_case(b"identity")
    {
        let message = "compressed bodies are not taken; send the body as it is";
        return Err(AppError::new(ErrorCode::UnsupportedMediaType, message));
    }
    let declared = headers.get(header::CONTENT_LENGTH).and_then(|v| v.to_str().ok()?.parse::<u64>().ok());
    let expects = headers.contains_key(header::EXPECT);
    let too_large = |size: Option<u64>| {
        let size = size.map_or_else(String::new, |n| format!(" of {n} bytes"));
        AppError::new(ErrorCode::TooLarge, format!("the body{size} is over the limit of {max} bytes"))
    };
    if expects && declared.is_some_and(|n| n > max as u64) {
        return Err(too_large(declared));
    }
    let mut body = request.into_body();
    let read = async {
        if let Some(mut whole) = collect(&mut body, max, &mut held).await? {
            if whole.starts_with(BYTE_ORDER_MARK) {
                whole.advance(BYTE_ORDER_MARK.len());
            }
            return Ok((whole, held));
        }
        drop(held);
        drain(&mut body).await;
        Err(too_large(declared))
    };
    tokio::time::timeout(within, read).await.unwrap_or_else(|_| {
        let message = format!("the body did not arrive within {} s", within.as_secs());
        Err(AppError::new(ErrorCode::DeadlineExceeded, message))
    })
}

/// `None`: there is more than `max`. A body that came as one piece is not copied.
async fn collect(body: &mut Body, max: usize, held: &mut Held) -> Result<Option<Bytes>, AppError> {
    let mut first = Bytes::new();
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| invalid("body", format!("broke off: {e}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if first.len().max(whole.len()) + data.len() > max {
            return Ok(None);
        }
        if !held.grow(data.len()) {
            let message = "requests that are on their way take all the memory there is for them";
            return Err(AppError::new(ErrorCode::Overloaded, message).retry_after(Span::secs(1)));
        }
        if whole.is_empty() && first.is_empty() {
            first = data;
        } else {
            if whole.is_empty() {
                whole.extend_from_slice(&first);
            }
            whole.extend_from_slice(&data);
        }
    }
    Ok(Some(if whole.is_empty() { first } else { whole.freeze() }))
}

/// Reads and forgets, up to [`DRAIN_MAX`].
async fn drain(body: &mut Body) {
    let mut left = DRAIN_MAX;
    while let Some(Ok(frame)) = body.frame().await {
        let size = frame.data_ref().map_or(0, Bytes::len);
        if size > left {
            return;
        }
        left -= size;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Uri;
    use std::time::Duration;

    async fn params(query: &str) -> Params {
        let uri: Uri = format!("/x?{query}").parse().unwrap();
        let (mut parts, ()) = http::Request::builder().uri(uri).body(()).unwrap().into_parts();
        Params::from_request_parts(&mut parts, &()).await.unwrap()
    }

    /// The body alone.
    async fn body(request: Request, max: usize, within: Duration) -> Result<Bytes, AppError> {
        let options = Options { body_within: within, ..Options::default() };
        super::body(request, max, &options).await.map(|(body, _)| body)
    }

    fn request(headers: &[(&str, &str)], body: impl Into<Body>) -> Request {
        let mut builder = http::Request::builder();
        for (name, value) in headers {
            builder = builder.header(*name, *value);
        }
        builder.body(body.into()).unwrap()
    }

    #[test]
    fn a_wait_is_a_duration_of_at_most_a_minute() {
        assert_eq!(wait("60s"), Ok(Span::secs(60)));
        assert_eq!(wait("250ms"), Ok(Span::millis(250)));
        assert_eq!(wait("61s"), Err("\"61s\" is longer than 60s".into()));
        for bad in ["", "30", "-1s", "1.5s", "1y"] {
            assert!(wait(bad).is_err(), "{bad:?}");
        }
    }

    #[tokio::test]
    async fn every_fault_of_a_query_is_named_and_nothing_unknown_passes() {
        let mut query = params("limit=0&tag=a:b:c&tag=x&wait=2m&wit=1&flag=yes&cursor=a&cursor=b").await;
        assert_eq!(query.page(), (PAGE_DEFAULT, Some("b".to_owned())));
        assert_eq!(query.tags(), [("a".to_owned(), "b:c".to_owned())]);
        assert_eq!(query.wait(), None);
        assert!(!query.flag("flag"));
        let Refused(error) = query.finish().unwrap_err();
        let paths: Vec<_> = error.faults.iter().map(|f| f.path.as_str()).collect();
        assert_eq!(paths, ["limit", "cursor", "tag", "wait", "flag", "wit"]);
        assert_eq!(error.code, ErrorCode::InvalidRequest);
    }

    #[tokio::test]
    async fn a_good_query_passes() {
        let mut query = params("limit=500&cursor=abc&wait=1s&dry_run=true").await;
        assert_eq!(query.page(), (500, Some("abc".into())));
        assert_eq!(query.wait(), Some(Span::secs(1)));
        assert!(query.flag("dry_run"));
        assert_eq!(query.finish(), Ok(()));
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Example<'a> {
        #[serde(borrow, default)]
        input: Option<&'a RawValue>,
        #[serde(default)]
        count: u32,
    }

    fn read(text: &'static str) -> Result<(Bytes, u32), AppError> {
        let body = JsonBody::<100>(Bytes::from_static(text.as_bytes()), Options::default().meter.body(100));
        let example: Example<'_> = body.read().map_err(|Refused(e)| e)?;
        Ok((body.text(example.input), example.count))
    }

    #[test]
    fn values_inside_a_body_keep_every_byte() {
        for value in ["9007199254740993", "1.0", "[]", "{}", "{\"a\" : [1.50,\n null]}", "\"\\u00e9\"", "-0"]
        {
            let text: &'static str = format!("{{\"count\": 3, \"input\": {value} }}").leak();
            assert_eq!(read(text), Ok((Bytes::from_static(value.as_bytes()), 3)));
        }
        assert_eq!(read("{\"input\":null}"), Ok((Bytes::new(), 0)));
        assert_eq!(read(""), Ok((Bytes::new(), 0)));
    }

    #[test]
    fn a_body_that_does_not_fit_is_refused_with_the_name_of_the_field() {
        for (text, path, says) in [
            (
                "{\"count\":\"3\"}",
                "count",
                "is the text \"3\"; it must be a whole number from 0 to 4294967295",
            ),
            ("{\"count\":-1}", "count", "is -1; it must be a whole number from 0 to 4294967295"),
            ("{\"cuont\":1}", "cuont", "is not known here; known are input, count"),
            ("{\"count\":1,\"count\":2}", "count", "is given more than once"),
            ("{\"count\":1} x", "body", "is not valid JSON: more text after the value at line 1, column 13"),
            ("[3]", "body", "must be a JSON object"),
            (
                "{",
                "body",
                "is not valid JSON: expected a key in double quotes, but the text ends at line 1, column 2",
            ),
            ("{\"count\":}", "count", "is not valid JSON: expected a value at line 1, column 10"),
            ("{\"count\":01}", "count", "is not valid JSON: not a valid number at line 1, column 12"),
        ] {
            let error = read(text).unwrap_err();
            assert_eq!(error.code, ErrorCode::InvalidRequest, "{text}");
            assert_eq!(error.faults[0].path, path, "{text}: {error}");
            assert_eq!(error.faults[0].message, says, "{text}");
        }
    }

    #[test]
    fn a_field_that_is_missing_or_doubled_is_named() {
        assert_eq!(field(".", "missing field `workflow` at line 1 column 2"), "workflow");
        assert_eq!(field("tags", "duplicate field `a` at line 1 column 2"), "tags.a");
        assert_eq!(field("tags.a", "invalid type: integer"), "tags.a");
        assert_eq!(field(".", "EOF while parsing"), "body");
        assert_eq!(field("?", "EOF while parsing"), "body");
        assert_eq!(field("tags.?", "EOF while parsing"), "tags");
    }

    #[tokio::test]
    async fn a_body_over_the_limit_is_refused_whether_declared_or_not() {
        let long = Duration::from_secs(5);
        for headers in
            [&[][..], &[("content-length", "11")], &[("content-length", "11"), ("expect", "100-continue")]]
        {
            let error = body(request(headers, "01234567890"), 10, long).await.unwrap_err();
            assert_eq!(error.code, ErrorCode::TooLarge, "{headers:?}");
        }
        assert_eq!(body(request(&[], "0123456789"), 10, long).await, Ok(Bytes::from_static(b"0123456789")));
    }

    #[tokio::test]
    async fn a_body_in_pieces_is_put_together_up_to_the_limit() {
        let pieces = |n: usize| {
            let stream =
                futures::stream::iter((0..n).map(|_| Ok::<_, std::io::Error>(Bytes::from_static(b"abc"))));
            request(&[], Body::from_stream(stream))
        };
        let long = Duration::from_secs(5);
        assert_eq!(body(pieces(3), 9, long).await, Ok(Bytes::from_static(b"abcabcabc")));
        assert_eq!(body(pieces(4), 9, long).await.unwrap_err().code, ErrorCode::TooLarge);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_does_not_come_is_given_up() {
        let silent = Body::from_stream(futures::stream::pending::<Result<Bytes, std::io::Error>>());
        let error = body(request(&[], silent), 10, Duration::from_secs(30)).await.unwrap_err();
        assert_eq!(error.code, ErrorCode::DeadlineExceeded);
    }

    #[tokio::test]
    async fn a_byte_order_mark_is_no_part_of_the_body() {
        let long = Duration::from_secs(5);
        let read = body(request(&[], "\u{feff}{\"a\":\"\u{feff}\"}"), 100, long).await;
        assert_eq!(read, Ok(Bytes::from("{\"a\":\"\u{feff}\"}")));
        assert_eq!(body(request(&[], "\u{feff}"), 100, long).await, Ok(Bytes::new()));
    }

    #[test]
    fn a_charset_that_is_not_utf_8_is_refused() {
        let of = |value: &'static str| {
            let headers =
                HeaderMap::from_iter([(header::CONTENT_TYPE, http::HeaderValue::from_static(value))]);
            media_type(&headers).map_err(|e| e.code)
        };
        let json = Ok(Some("application/json".to_owned()));
        for taken in [
            "application/json",
            "Application/JSON; charset=utf-8",
            "application/json;charset=\"UTF-8\"",
            "application/json; version=1; charset=us-ascii",
        ] {
            assert_eq!(of(taken), json, "{taken}");
        }
        for refused in ["application/json; charset=utf-16", "application/json; Charset=\"iso-8859-1\""] {
            assert_eq!(of(refused), Err(ErrorCode::UnsupportedMediaType), "{refused}");
        }
        assert_eq!(media_type(&HeaderMap::new()), Ok(None));
    }

    #[tokio::test]
    async fn compressed_bodies_are_refused() {
        let error = body(request(&[("content-encoding", "gzip")], "x"), 10, Duration::from_secs(1))
            .await
            .unwrap_err();
        assert_eq!(error.code, ErrorCode::UnsupportedMediaType);
    }
}

//! A strict pull parser over JSON text (RFC 8259): no recursion, no copies, positions for messages.

use std::borrow::Cow;

/// One token of a JSON text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token<'a> {
    /// `{`
    ObjectStart,
    /// `}`
    ObjectEnd,
    /// `[`
    ArrayStart,
    /// `]`
    ArrayEnd,
    /// A key of the object that is open; its value follows.
    Key(Text<'a>),
    /// A string.
    String(Text<'a>),
    /// A number, as written.
    Number(&'a str),
    /// `true` or `false`.
    Bool(bool),
    /// `null`
    Null,
}

/// A string as it stands between its quotes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Text<'a> {
    raw: &'a str,
    escaped: bool,
}

impl<'a> Text<'a> {
    /// Of what stands between the quotes.
    pub fn from_raw(raw: &'a str) -> Self {
        Self { raw, escaped: raw.as_bytes().contains(&b'\\') }
    }

    /// As written, escapes and all.
    pub fn raw(self) -> &'a str {
        self.raw
    }

    /// Whether it says `text`.
    pub fn is(self, text: &str) -> bool {
        if self.escaped { self.decode().is_ok_and(|t| t == text) } else { self.raw == text }
    }

    /// What it says. `Err` where a `\ud800` to `\udfff` has no partner: JSON allows that, text does not.
    pub fn decode(self) -> Result<Cow<'a, str>, LoneSurrogate> {
        if !self.escaped {
            return Ok(Cow::Borrowed(self.raw));
        }
        let mut out = String::with_capacity(self.raw.len());
        self.units(&mut |unit| match unit {
            Ok(c) => {
                out.push(c);
                Ok(())
            }
            Err(lone) => Err(LoneSurrogate(lone)),
        })?;
        Ok(Cow::Owned(out))
    }

    /// What it says, with U+FFFD where a surrogate stands alone. For looking up keys.
    pub fn lossy(self) -> Cow<'a, str> {
        if !self.escaped {
            return Cow::Borrowed(self.raw);
        }
        let mut out = String::with_capacity(self.raw.len());
        let always: Result<(), std::convert::Infallible> = self.units(&mut |unit| {
            out.push(unit.unwrap_or('\u{fffd}'));
            Ok(())
        });
        match always {
            Ok(()) => Cow::Owned(out),
        }
    }

    /// Every character, or the surrogate that stands alone there.
    pub(super) fn units<E>(self, take: &mut dyn FnMut(Result<char, u16>) -> Result<(), E>) -> Result<(), E> {
        let mut rest = self.raw;
        while let Some(at) = rest.find('\\') {
            for c in rest[..at].chars() {
                take(Ok(c))?;
            }
            let code = rest.as_bytes().get(at + 1).copied().unwrap_or(b'\\');
            let mut used = at + 2;
            let c = match code {
                b'n' => Ok('\n'),
                b't' => Ok('\t'),
                b'r' => Ok('\r'),
                b'b' => Ok('\u{8}'),
                b'f' => Ok('\u{c}'),
                b'u' => {
                    let high = hex4(rest, used);
                    used += 4;
                    let low = rest
                        .as_bytes()
                        .get(used..used + 2)
                        .filter(|b| b == b"\\u")
                        .map(|_| hex4(rest, used + 2));
                    match (high, low) {
                        (0xd800..=0xdbff, Some(low @ 0xdc00..=0xdfff)) => {
                            used += 6;
                            let code =
                                0x1_0000 + ((u32::from(high) - 0xd800) << 10) + (u32::from(low) - 0xdc00);
                            char::from_u32(code).ok_or(high)
                        }
                        _ => char::from_u32(u32::from(high)).ok_or(high),
                    }
                }
                other => Ok(char::from(other)),
            };
            take(c)?;
            rest = rest.get(used..).unwrap_or("");
        }
        for c in rest.chars() {
            take(Ok(c))?;
        }
        Ok(())
    }
}

/// A surrogate without its partner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the escape \\u{0:04x} is half of a surrogate pair")]
pub struct LoneSurrogate(pub u16);

fn hex4(text: &str, at: usize) -> u16 {
    text.get(at..at + 4).and_then(|h| u16::from_str_radix(h, 16).ok()).unwrap_or(0xfffd)
}

/// What is wrong with a JSON text, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SyntaxError {
    /// Byte offset.
    pub at: usize,
    /// What is wrong there.
    pub message: String,
}

impl SyntaxError {
    /// The message with line and column (both from 1, columns in characters) in `text`.
    pub fn describe(&self, text: &str) -> String {
        let before = text.get(..self.at).unwrap_or(text);
        let line = before.bytes().filter(|b| *b == b'\n').count() + 1;
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        format!("{} at line {line}, column {column}", self.message)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Value,
    FirstItem,
    FirstKey,
    Key,
    AfterValue,
    Done,
}

/// The parser. Call [`Reader::next`] until it gives `None`.
#[derive(Debug)]
pub struct Reader<'a> {
    text: &'a str,
    at: usize,
    /// One entry per open container: whether it is an object.
    open: Vec<bool>,
    state: State,
    max_depth: usize,
}

impl<'a> Reader<'a> {
    /// Over `text`, which may nest arrays and objects `max_depth` deep.
    pub fn new(text: &'a str, max_depth: usize) -> Self {
        Self { text, at: 0, open: Vec::new(), state: State::Value, max_depth }
    }

    /// Byte offset behind the last token.
    pub fn position(&self) -> usize {
        self.at
    }

    /// The next token; `None` at the end of a valid text.
    #[expect(clippy::should_implement_trait, reason = "gives a Result of an Option")]
    pub fn next(&mut self) -> Result<Option<Token<'a>>, SyntaxError> {
        self.step()
    }

    /// Reads what is left, without a look at it.
    pub(super) fn finish(mut self) -> Result<(), SyntaxError> {
        while self.step()?.is_some() {}
        Ok(())
    }

    #[expect(clippy::inline_always, reason = "half of a check went into tokens that nobody looked at")]
    #[inline(always)]
    fn step(&mut self) -> Result<Option<Token<'a>>, SyntaxError> {
        let bytes = self.text.as_bytes();
        loop {
            self.at = super::skip_space(bytes, self.at);
            let byte = bytes.get(self.at).copied();
            match self.state {
                State::Done => {
                    return match byte {
                        None => Ok(None),
                        Some(_) => self.fail("more text after the value"),
                    };
                }
                State::AfterValue => match (byte, self.open.last()) {
                    (Some(b','), Some(object)) => {
                        self.state = if *object { State::Key } else { State::Value };
                        self.at += 1;
                    }
                    (Some(b'}'), Some(true)) => return Ok(Some(self.close(Token::ObjectEnd))),
                    (Some(b']'), Some(false)) => return Ok(Some(self.close(Token::ArrayEnd))),
                    (_, Some(true)) => return self.fail("expected ',' or '}'"),
                    (_, Some(false)) => return self.fail("expected ',' or ']'"),
                    (_, None) => self.state = State::Done,
                },
                State::FirstItem if byte == Some(b']') => return Ok(Some(self.close(Token::ArrayEnd))),
                State::FirstKey if byte == Some(b'}') => return Ok(Some(self.close(Token::ObjectEnd))),
                State::FirstKey | State::Key => {
                    if byte != Some(b'"') {
                        return self.fail("expected a key in double quotes");
                    }
                    let key = self.string()?;
                    self.at = super::skip_space(bytes, self.at);
                    if bytes.get(self.at) != Some(&b':') {
                        return self.fail("expected ':'");
                    }
                    self.at += 1;
                    self.state = State::Value;
                    return Ok(Some(Token::Key(key)));
                }
                State::Value | State::FirstItem => return self.value(byte).map(Some),
            }
        }
    }

    #[cold]
    fn fail<T>(&self, message: &str) -> Result<T, SyntaxError> {
        let message = if self.at >= self.text.len() {
            format!("{message}, but the text ends")
        } else {
            message.to_owned()
        };
        Err(SyntaxError { at: self.at, message })
    }

    #[expect(clippy::inline_always, reason = "a part of a step")]
    #[inline(always)]
    fn close(&mut self, token: Token<'a>) -> Token<'a> {
        self.at += 1;
        self.open.pop();
        self.state = State::AfterValue;
        token
    }

    #[expect(clippy::inline_always, reason = "a part of a step")]
    #[inline(always)]
    fn value(&mut self, byte: Option<u8>) -> Result<Token<'a>, SyntaxError> {
        let token = match byte {
            Some(open @ (b'{' | b'[')) => {
                if self.open.len() >= self.max_depth {
                    return self
                        .fail(&format!("lists and objects are nested deeper than {}", self.max_depth));
                }
                let object = open == b'{';
                self.open.push(object);
                self.at += 1;
                self.state = if object { State::FirstKey } else { State::FirstItem };
                return Ok(if object { Token::ObjectStart } else { Token::ArrayStart });
            }
            Some(b'"') => Token::String(self.string()?),
            Some(b'-' | b'0'..=b'9') => Token::Number(self.number()?),
            Some(b't') => self.word("true", Token::Bool(true))?,
            Some(b'f') => self.word("false", Token::Bool(false))?,
            Some(b'n') => self.word("null", Token::Null)?,
            _ => return self.fail("expected a value"),
        };
        self.state = State::AfterValue;
        Ok(token)
    }

    #[inline]
    fn word(&mut self, word: &str, token: Token<'a>) -> Result<Token<'a>, SyntaxError> {
        if self.text.as_bytes()[self.at..].starts_with(word.as_bytes()) {
            self.at += word.len();
            Ok(token)
        } else {
            self.fail("expected a value")
        }
    }

    fn string(&mut self) -> Result<Text<'a>, SyntaxError> {
        let bytes = self.text.as_bytes();
        let start = self.at + 1;
        let mut escaped = false;
        self.at = start;
        loop {
            self.at = super::plain_end(bytes, self.at);
            match bytes.get(self.at) {
                Some(b'"') => {
                    let raw = &self.text[start..self.at];
                    self.at += 1;
                    return Ok(Text { raw, escaped });
                }
                Some(b'\\') => {
                    escaped = true;
                    match bytes.get(self.at + 1) {
                        Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => self.at += 2,
                        Some(b'u')
                            if bytes
                                .get(self.at + 2..self.at + 6)
                                .is_some_and(|h| h.iter().all(u8::is_ascii_hexdigit)) =>
                        {
                            self.at += 6;
                        }
                        _ => return self.fail("not a valid escape"),
                    }
                }
                Some(0..=0x1f) => return self.fail("a control character must be escaped"),
                Some(_) => self.at += 1,
                None => return self.fail("expected '\"'"),
            }
        }
    }

    #[inline]
    fn number(&mut self) -> Result<&'a str, SyntaxError> {
        let bytes = self.text.as_bytes();
        let start = self.at;
        let digits = |at: &mut usize| {
            let from = *at;
            while bytes.get(*at).is_some_and(u8::is_ascii_digit) {
                *at += 1;
            }
            *at > from
        };
        let mut at = start;
        if bytes[at] == b'-' {
            at += 1;
        }
        let first = at;
        let mut ok = digits(&mut at) && (bytes[first] != b'0' || at == first + 1);
        if ok && bytes.get(at) == Some(&b'.') {
            at += 1;
            ok = digits(&mut at);
        }
        if ok && matches!(bytes.get(at), Some(b'e' | b'E')) {
            at += 1;
            if matches!(bytes.get(at), Some(b'+' | b'-')) {
                at += 1;
            }
            ok = digits(&mut at);
        }
        self.at = at.min(bytes.len());
        if ok { Ok(&self.text[start..at]) } else { self.fail("not a valid number") }
    }
}

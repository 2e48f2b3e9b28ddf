//! Finds expressions in text and cuts them into tokens, by the same rules as the expression language itself.

/// Longest expression, in bytes between `${{` and `}}`.
pub(super) const MAX_EXPRESSION: usize = 4096;

/// A part of a text.
#[derive(Debug)]
pub(super) enum Part<'s> {
    /// As it stands, `$${{` already turned into `${{`.
    Text(String),
    /// An expression.
    Expression(Source<'s>),
}

/// An expression as written.
#[derive(Debug)]
pub(super) struct Source<'s> {
    /// Between `${{` and `}}`, trimmed.
    pub(super) text: &'s str,
    pub(super) tokens: Vec<Token<'s>>,
}

/// A token with its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Token<'s> {
    pub(super) kind: Lexeme,
    pub(super) text: &'s str,
    /// Offset in the text that was cut.
    pub(super) at: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lexeme {
    Name,
    Integer,
    Float,
    /// Quotes included.
    String,
    Symbol,
}

impl Token<'_> {
    pub(super) fn is(&self, symbol: &str) -> bool {
        self.kind == Lexeme::Symbol && self.text == symbol
    }

    pub(super) fn is_name(&self, name: &str) -> bool {
        self.kind == Lexeme::Name && self.text == name
    }
}

/// Whether an expression stands in `text` (`$${{` is none).
pub(crate) fn has_expression(text: &str) -> bool {
    text.match_indices("${{").any(|(at, _)| !text[..at].ends_with('$'))
}

/// Whether `text` is an expression with nothing around it. Text that cannot be cut passes: compiling it tells why.
pub(crate) fn is_one_expression(text: &str) -> bool {
    split(text).map_or(true, |parts| matches!(parts[..], [Part::Expression(_)]))
}

/// Cuts a text into literal parts and expressions.
pub(super) fn split(text: &str) -> Result<Vec<Part<'_>>, String> {
    let mut parts = Vec::new();
    let mut literal = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("${{") {
        if rest[..at].ends_with('$') {
            literal.push_str(&rest[..at - 1]);
            literal.push_str("${{");
            rest = &rest[at + 3..];
            continue;
        }
        literal.push_str(&rest[..at]);
        if !literal.is_empty() {
            parts.push(Part::Text(std::mem::take(&mut literal)));
        }
        let inside = &rest[at + 3..];
        let (tokens, end) = tokens(inside)?;
        let text = inside[..end].trim();
        if end > MAX_EXPRESSION {
            return Err(format!("an expression has {end} bytes; the limit is {MAX_EXPRESSION} (4 KiB)"));
        }
        if tokens.is_empty() {
            return Err("an expression is empty".to_owned());
        }
        parts.push(Part::Expression(Source { text, tokens }));
        rest = &inside[end + 2..];
    }
    literal.push_str(rest);
    if !literal.is_empty() || parts.is_empty() {
        parts.push(Part::Text(literal));
    }
    Ok(parts)
}

/// The tokens up to the `}}` that closes the expression, and where that stands.
fn tokens(source: &str) -> Result<(Vec<Token<'_>>, usize), String> {
    let bytes = source.as_bytes();
    let mut tokens: Vec<Token<'_>> = Vec::new();
    let (mut at, mut open) = (0, 0i32);
    loop {
        while bytes.get(at).is_some_and(u8::is_ascii_whitespace) {
            at += 1;
        }
        let Some(byte) = bytes.get(at).copied() else {
            return Err("an expression is not closed: '}}' is missing".to_owned());
        };
        if open <= 0 && source[at..].starts_with("}}") {
            return Ok((tokens, at));
        }
        let (kind, length) = match byte {
            b'"' | b'\'' => (Lexeme::String, string(bytes, at)?),
            b'0'..=b'9' => number(bytes, at),
            b'A'..=b'Z' | b'a'..=b'z' | b'_' => {
                let more =
                    bytes[at..].iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'_').count();
                (Lexeme::Name, more)
            }
            b'(' | b'[' | b'{' => {
                open += 1;
                (Lexeme::Symbol, 1)
            }
            b')' | b']' | b'}' => {
                open -= 1;
                (Lexeme::Symbol, 1)
            }
            b'+' | b'-' | b'*' | b'/' | b'%' | b'.' | b',' | b':' | b'~' | b'|' | b'=' | b'<' | b'>'
            | b'!' => {
                let two = bytes
                    .get(at..at + 2)
                    .is_some_and(|op| matches!(op, b"//" | b"**" | b"==" | b"!=" | b">=" | b"<="));
                if byte == b'!' && !two {
                    return Err("an expression holds a '!' that is not part of '!='; write 'not'".to_owned());
                }
                (Lexeme::Symbol, if two { 2 } else { 1 })
            }
            _ => {
                let c = source[at..].chars().next().unwrap_or(' ');
                return Err(format!("an expression holds {c:?}, which means nothing outside of quotes"));
            }
        };
        tokens.push(Token { kind, text: &source[at..at + length], at });
        at += length;
    }
}

fn string(bytes: &[u8], at: usize) -> Result<usize, String> {
    let mut i = at + 1;
    loop {
        match bytes.get(i) {
            Some(b'\\') => i += 2,
            Some(b) if *b == bytes[at] => return Ok(i + 1 - at),
            Some(_) => i += 1,
            None => return Err("an expression holds a text whose quote is not closed".to_owned()),
        }
    }
}

/// Length of the number at `at`. Behind a dot it is an index and has no fraction.
fn number(bytes: &[u8], at: usize) -> (Lexeme, usize) {
    let rest = &bytes[at..];
    let run = |from: usize, ok: fn(&u8) -> bool| rest[from..].iter().take_while(|b| ok(b)).count();
    if let [b'0', b'x' | b'X' | b'b' | b'B' | b'o' | b'O', ..] = rest {
        return (Lexeme::Integer, 2 + run(2, |b| b.is_ascii_hexdigit() || *b == b'_'));
    }
    let digit: fn(&u8) -> bool = |b| b.is_ascii_digit() || *b == b'_';
    let mut length = run(0, digit);
    let mut kind = Lexeme::Integer;
    let letter = |i: usize| rest.get(i).is_some_and(|b| b.is_ascii_alphabetic() || *b == b'_');
    let exponent = |i: usize| {
        matches!(rest.get(i), Some(b'e' | b'E')) && matches!(rest.get(i + 1), Some(b'+' | b'-' | b'0'..=b'9'))
    };
    let after_dot = at > 0 && bytes[at - 1] == b'.';
    if !after_dot && rest.get(length) == Some(&b'.') && (!letter(length + 1) || exponent(length + 1)) {
        kind = Lexeme::Float;
        length += 1 + run(length + 1, digit);
    }
    if exponent(length) {
        kind = Lexeme::Float;
        length += 2;
        length += run(length, digit);
    }
    (kind, length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(text: &str) -> Result<Vec<String>, String> {
        Ok(split(text)?
            .into_iter()
            .map(|p| match p {
                Part::Text(t) => format!("t:{t}"),
                Part::Expression(e) => format!("e:{}", e.text),
            })
            .collect())
    }

    #[test]
    fn expressions_are_found_with_their_true_end() {
        assert_eq!(cut("plain").unwrap(), ["t:plain"]);
        assert_eq!(cut("").unwrap(), ["t:"]);
        assert_eq!(cut("${{ a }}").unwrap(), ["e:a"]);
        assert_eq!(cut("x-${{a}}-${{ b }}y").unwrap(), ["t:x-", "e:a", "t:-", "e:b", "t:y"]);
        assert_eq!(cut("${{ '}}' ~ \"}}\" }}").unwrap(), ["e:'}}' ~ \"}}\""]);
        assert_eq!(cut("${{ {'a': {'b': 1}} }}!").unwrap(), ["e:{'a': {'b': 1}}", "t:!"]);
    }

    #[test]
    fn a_second_dollar_writes_the_mark_itself() {
        assert_eq!(cut("$${{ a }}").unwrap(), ["t:${{ a }}"]);
        assert_eq!(cut("$$${{").unwrap(), ["t:$${{"]);
        assert_eq!(
            cut("$$ $HOME Pool$1 {{ x }} $${{x}} ${{ a }}").unwrap(),
            ["t:$$ $HOME Pool$1 {{ x }} ${{x}} ", "e:a"]
        );
        assert!(!has_expression("$${{ a }}") && has_expression("$ ${{ a }}"));
    }

    #[test]
    fn what_cannot_be_cut_is_refused() {
        for (bad, why) in [
            ("${{ a", "not closed"),
            ("${{ a }", "not closed"),
            ("${{ 'a }}", "quote"),
            ("${{ }}", "empty"),
            ("${{ a ? b }}", "'?'"),
            ("${{ a && b }}", "'&'"),
            ("${{ !a }}", "'not'"),
            ("${{ ä }}", "'ä'"),
        ] {
            assert!(cut(bad).unwrap_err().contains(why), "{bad}: {:?}", cut(bad));
        }
        let long = format!("${{{{ {} }}}}", "a".repeat(MAX_EXPRESSION));
        assert!(cut(&long).unwrap_err().contains("4 KiB"));
    }

    #[test]
    fn numbers_end_where_they_should() {
        let (tokens, _) = tokens("1.5e3 + x.0.y 0x1F 1_000 2.e x }}").unwrap();
        let texts: Vec<_> = tokens.iter().map(|t| t.text).collect();
        assert_eq!(texts, ["1.5e3", "+", "x", ".", "0", ".", "y", "0x1F", "1_000", "2", ".", "e", "x"]);
    }
}

//! What hyper answers by itself, before any route is asked: a bare status. Here it gets the body that every other error
//! has. Only HTTP/1.1: over HTTP/2 such requests end in a frame, which has no body.

use super::error::Refused;
use crate::app::AppError;
use crate::model::error::ErrorCode;

/// The answer to write instead of `head`, if that is one of hyper's own and stands alone.
pub(super) fn instead_of(head: &[u8]) -> Option<Vec<u8>> {
    let status = head.strip_prefix(b"HTTP/1.1 ")?.get(..3)?;
    let error = match status {
        b"400" => AppError::new(
            ErrorCode::InvalidRequest,
            "this is no request of HTTP/1.1: its first line or a header cannot be read",
        ),
        b"414" => AppError::new(
            ErrorCode::AddressTooLong,
            "the address is longer than can be read; values that are long belong into the body",
        ),
        b"431" => AppError::new(
            ErrorCode::HeadersTooLarge,
            "there are too many headers, or they are too long together",
        ),
        _ => return None,
    };
    let head = std::str::from_utf8(head).ok()?;
    let lines = head.strip_suffix("\r\n\r\n")?;
    if lines.contains("\r\n\r\n") || !lines.contains("\r\ncontent-length: 0") {
        return None;
    }
    let body = Refused(error).body();
    let with_body = format!("\r\ncontent-type: application/problem+json\r\ncontent-length: {}", body.len());
    let mut answer = lines.replacen("\r\ncontent-length: 0", &with_body, 1).into_bytes();
    answer.extend_from_slice(b"\r\n\r\n");
    answer.extend_from_slice(&body);
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_status_gets_a_body() {
        let head = b"HTTP/1.1 414 URI Too Long\r\nconnection: close\r\ncontent-length: 0\r\ndate: x\r\n\r\n";
        let answer = String::from_utf8(instead_of(head).unwrap()).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert_eq!(
            head,
            format!(
                "HTTP/1.1 414 URI Too Long\r\nconnection: close\r\ncontent-type: application/problem+json\r\n\
                 content-length: {}\r\ndate: x",
                body.len()
            )
        );
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        assert_eq!((&body["status"], &body["code"]), (&414.into(), &"address_too_long".into()));
    }

    #[test]
    fn what_has_a_body_or_is_no_error_of_hyper_is_left_alone() {
        for head in [
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n",
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}",
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n",
            "data: HTTP/1.1 400\r\n\r\n",
            "",
        ] {
            assert_eq!(instead_of(head.as_bytes()), None, "{head:?}");
        }
    }
}

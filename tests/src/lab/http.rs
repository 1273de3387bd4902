//! Requests to the box's control plane, from the thread's own namespace.

use super::process::DEADLINE;
use std::io::{Read, Write};
use std::net::TcpStream;

/// Sends one request; returns the status code and the body.
///
/// # Panics
/// Where there is no answer.
#[must_use]
pub fn request(control: &str, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(control).expect("the control plane");
    stream.set_read_timeout(Some(DEADLINE)).expect("a timeout");
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: {control}\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    )
    .expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("head and body");
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status code");
    (code, body.to_owned())
}

//! Tells the service manager how far the box is: the protocol of sd_notify(3).

use anyhow::Context;
use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The variable that names the service manager's socket.
const VARIABLE: &str = "NOTIFY_SOCKET";

/// Sends `state`, such as `READY=1`, where a service manager asked for it.
///
/// # Errors
/// Where it asked, and cannot be told.
pub(super) fn notify(state: &str) -> anyhow::Result<()> {
    let Some(name) = std::env::var_os(VARIABLE) else { return Ok(()) };
    send(&name, state).with_context(|| {
        format!("cannot tell {state} to the service manager at {VARIABLE}={}", name.display())
    })
}

/// A name that begins with @ is of an abstract socket, any other is a path.
fn send(name: &OsStr, state: &str) -> io::Result<()> {
    let address = match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest)?,
        _ => SocketAddr::from_pathname(name)?,
    };
    UnixDatagram::unbound()?.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut bytes = [0; 64];
        socket.set_nonblocking(true).unwrap();
        let n = socket.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..n]).into_owned()
    }

    #[test]
    fn paths_and_abstract_names() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), "READY=1").unwrap();
        assert_eq!(received(&socket), "READY=1");
        let name = format!("gradbox-notify-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = UnixDatagram::bind_addr(&address).unwrap();
        send(OsStr::new(&format!("@{name}")), "STOPPING=1").unwrap();
        assert_eq!(received(&socket), "STOPPING=1");
        assert!(send(dir.path().join("none").as_os_str(), "READY=1").is_err());
    }
}

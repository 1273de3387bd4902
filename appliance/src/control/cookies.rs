//! Cookies: the secret that a rank's packets carry.

use std::fs::File;
use std::io::{self, Read};

/// The kernel's random numbers.
pub(super) struct Cookies(File);

impl Cookies {
    /// # Errors
    /// Where there is no `/dev/urandom`.
    pub(super) fn open() -> io::Result<Self> {
        File::open("/dev/urandom").map(Self)
    }

    /// A random number that is not 0.
    ///
    /// # Errors
    /// Where the kernel gives none.
    pub(super) fn draw(&mut self) -> io::Result<u32> {
        loop {
            let mut bytes = [0; 4];
            self.0.read_exact(&mut bytes)?;
            let cookie = u32::from_ne_bytes(bytes);
            if cookie != 0 {
                return Ok(cookie);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn cookies_differ_and_are_not_zero() {
        let mut cookies = super::Cookies::open().unwrap();
        let drawn: std::collections::HashSet<_> =
            (0..64).map(|_| cookies.draw().unwrap()).collect();
        assert!(drawn.len() > 60 && !drawn.contains(&0));
    }
}

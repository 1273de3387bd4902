//! The rate of a link, and what it allows at best.

use gradbox_protocol::HEADER_LEN;
use std::fmt;
use std::str::FromStr;

/// Bytes of a frame besides the gradient: Ethernet, IPv4, UDP and Gradbox headers. What limits the
/// links counts no preamble and no checksum of the frame.
const HEADERS: usize = 14 + 20 + 8 + HEADER_LEN;

/// Units of a rate, in bits per second.
const UNITS: [(&str, f64); 2] = [("gbit", 1e9), ("mbit", 1e6)];

/// Bits of Ethernet frames per second, in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate(u64);

impl Rate {
    /// Bits per second.
    #[must_use]
    pub const fn bits_per_second(self) -> u64 {
        self.0
    }

    /// Seconds for `bytes` of gradient in packets of `chunk_bytes`: each worker's link carries them
    /// once each way, both ways at the same time.
    #[must_use]
    pub fn ideal_seconds(self, bytes: u64, chunk_bytes: u16) -> f64 {
        let chunk = f64::from(chunk_bytes);
        bytes as f64 * (chunk + HEADERS as f64) / chunk * 8.0 / self.0 as f64
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |(unit, factor)| Some(text.strip_suffix(unit)?.parse::<f64>().ok()? * factor);
        let bits = UNITS.into_iter().find_map(number).filter(|b| (1e6..=400e9).contains(b));
        let bits = bits.ok_or("needs 1mbit to 400gbit, such as 1gbit or 2.5gbit")?;
        Ok(Self(bits as u64))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bits = self.0 as f64;
        let (unit, factor) = if bits < 1e9 { UNITS[1] } else { UNITS[0] };
        write!(f, "{}{unit}", bits / factor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates() {
        for (text, bits) in [("1gbit", 1_000_000_000), ("2.5gbit", 2_500_000_000)] {
            let rate: Rate = text.parse().unwrap();
            assert_eq!((rate.bits_per_second(), &*rate.to_string()), (bits, text));
        }
        assert_eq!("500mbit".parse::<Rate>().unwrap().to_string(), "500mbit");
        for wrong in ["", "1", "gbit", "-1gbit", "0gbit", "1kbit", "NaNgbit", "500gbit"] {
            assert!(wrong.parse::<Rate>().unwrap_err().contains("1gbit"), "{wrong}");
        }
    }

    #[test]
    fn the_ideal_counts_headers() {
        let rate: Rate = "1gbit".parse().unwrap();
        // 71,000 packets of 1408 + 74 bytes.
        let seconds = rate.ideal_seconds(71_000 * 1408, 1408);
        assert!((seconds - 71_000.0 * 1482.0 * 8e-9).abs() < 1e-9, "{seconds}");
        let jumbo = rate.ideal_seconds(71_000 * 1408, 3392);
        assert!(jumbo < seconds && jumbo > 71_000.0 * 1408.0 * 8e-9);
    }
}

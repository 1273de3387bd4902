//! Where a refusal points, and that the reference is complete and true.

use super::*;
use std::path::PathBuf;

fn configs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs")
}

fn reference() -> String {
    std::fs::read_to_string(configs().join("reference.toml")).unwrap()
}

fn parse(text: &str) -> Result<Config, ConfigError> {
    Config::parse(text, Path::new("x.toml"))
}

/// The message for `text`.
fn refusal(text: &str) -> String {
    parse(text).unwrap_err().to_string()
}

/// The field that a line sets.
fn field_of(line: &str) -> Option<&str> {
    let (field, _) = line.split_once(" = ")?;
    field.bytes().all(|b| b.is_ascii_lowercase() || b == b'_').then_some(field)
}

#[test]
fn the_reference_says_the_defaults() {
    let minimal = "[data]\nport = \"xdp\"\ninterface = \"eth1\"\n";
    assert_eq!(parse(&reference()).unwrap(), parse(minimal).unwrap());
    // Fields that are commented out because their absence is the default: uncommented, the file
    // is valid, but for the two that say the same thing twice.
    let all = reference()
        .lines()
        .map(|line| match line.strip_prefix("# ") {
            Some(rest) if rest == "[faults]" || field_of(rest).is_some() => rest,
            _ => line,
        })
        .filter(|line| !line.starts_with("memory_mib"))
        .map(|line| format!("{line}\n"))
        .collect::<String>();
    let all = parse(&all).unwrap();
    assert_eq!(all.frames_per_core(), parse(minimal).unwrap().frames_per_core());
    let faults = Faults { loss: 0.0, duplicate: 0.0, reorder: 0.0, seed: 1 };
    assert_eq!(all.faults, Some(faults));
}

#[test]
fn the_reference_mentions_every_field() {
    let reference = reference();
    for section in ["control", "data", "faults", "log"] {
        // serde's own refusal lists the fields that there are.
        let list = refusal(&format!("[{section}]\nno_such_field = 1\n"));
        let (_, list) = list.split_once("expected ").expect("a list of fields");
        let fields: Vec<_> = list.split('`').skip(1).step_by(2).collect();
        assert!(!fields.is_empty(), "{list}");
        for field in fields {
            let given =
                reference.lines().any(|l| field_of(l.trim_start_matches("# ")) == Some(field));
            assert!(given, "{section}.{field} is not in the reference");
        }
    }
}

#[test]
fn the_samples_are_valid() {
    for entry in std::fs::read_dir(configs()).unwrap() {
        let path = entry.unwrap().path();
        let config = Config::load(&path).unwrap_or_else(|e| panic!("{e}"));
        assert!(config.job_frames_per_core() > 0);
    }
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let message = Config::load(Path::new("no/such.toml")).unwrap_err().to_string();
    assert!(message.starts_with("no/such.toml: cannot be read: "), "{message}");
}

#[test]
fn refusals_point_at_the_place_and_say_what_to_change() {
    let udp = "[data]\nport = \"udp\"\n";
    let xdp = "[data]\nport = \"xdp\"\ninterface = \"eth1\"\n";
    let cases = [
        ("", "x.toml:1:1: missing field `data`"),
        ("[data]\nmtu = 1500\n", "x.toml:1:1: data.port: missing: say \"xdp\""),
        (
            "[data]\nport = \"tcp\"\n",
            "x.toml:2:8: data.port: unknown variant `tcp`, expected `xdp` or `udp`",
        ),
        ("[data]\nport = \"xdp\"\n", "x.toml:2:8: data.interface: missing"),
        (
            &format!("{udp}interface = \"eth1\"\n"),
            "x.toml:3:13: data.interface: is for port = \"xdp\" alone",
        ),
        (&format!("{udp}attach = \"skb\"\n"), "x.toml:3:10: data.attach: is for port"),
        (&format!("{udp}udp_checksum = \"full\"\n"), "x.toml:3:16: data.udp_checksum: is for port"),
        (
            "[data]\nport = \"xdp\"\ninterface = \"a/b\"\n",
            "x.toml:3:13: data.interface: \"a/b\" is no interface's name",
        ),
        (
            &format!("{udp}mtu = 9000\n"),
            "x.toml:3:7: data.mtu: 9000 needs frames larger than 4096 bytes: use 3498 or less",
        ),
        (&format!("{udp}mtu = 100\n"), "x.toml:3:7: data.mtu: 100 has no room for a chunk"),
        (
            &format!("{udp}mtu = 70000\n"),
            "x.toml:3:7: data.mtu: invalid value: integer `70000`, expected u16",
        ),
        (&format!("{udp}mtux = 1\n"), "x.toml:3:1: unknown field `mtux`, expected one of `port`"),
        (&format!("{udp}queues = 0\n"), "x.toml:3:10: data.queues: 0 is out of range: use 1 to 64"),
        (
            &format!("{udp}queues = 2\nport_base = 65534\n"),
            "x.toml:4:13: data.port_base: 65534 is out of range: use 1 to 65533",
        ),
        (&format!("{udp}queues = 2\ncpus = [1]\n"), "x.toml:4:8: data.cpus: 1 CPUs for 2 queues"),
        (&format!("{udp}queues = 2\ncpus = [1,\n  1]\n"), "x.toml:5:3: data.cpus: CPU 1 twice"),
        (&format!("{udp}addresses = []\n"), "x.toml:3:13: data.addresses: empty"),
        (
            &format!("{udp}addresses = [\"0.0.0.0\"]\n"),
            "x.toml:3:14: data.addresses: 0.0.0.0 is not an address",
        ),
        (
            &format!("{udp}addresses = [\"::1\", \"fd00::1\"]\n"),
            "x.toml:3:21: data.addresses: fd00::1 and ::1 are of one family",
        ),
        (
            &format!("{udp}addresses = [\"box\"]\n"),
            "x.toml:3:14: data.addresses: invalid IP address syntax",
        ),
        (
            &format!("{udp}frames = 10000\nmemory_mib = 64\n"),
            "x.toml:3:10: data.frames: give either frames or memory_mib",
        ),
        (
            &format!("{udp}memory_mib = 8\n"),
            "x.toml:3:14: data.memory_mib: 4096 frames of 2048 bytes, but the rings alone need \
             6400 (fill_ring 4096 + tx_ring 2048 + 256 between them): use more than 6400 frames \
             (memory_mib = 13 or more)",
        ),
        (&format!("{udp}memory_mib = 99999999999\n"), "x.toml:3:14: data.memory_mib: "),
        (
            &format!("{xdp}frames = 6401\nhuge_pages = true\n"),
            "x.toml:4:10: data.frames: 6401 frames of 2048 bytes do not fill 2 MiB pages, \
             which huge_pages = true needs: use 7168 frames, a multiple of 1024",
        ),
        (
            &format!("{udp}fill_ring = 5000\n"),
            "x.toml:3:13: data.fill_ring: 5000 is no power of two: use 4096 or 8192",
        ),
        (
            &format!("{udp}rx_ring = 32\n"),
            "x.toml:3:11: data.rx_ring: 32 is out of range: use 64 to 65536",
        ),
        (
            &format!("{udp}fill_ring = 1024\n"),
            "x.toml:3:13: data.fill_ring: 1024 is less than rx_ring = 2048: use 2048 or more",
        ),
        (
            &format!("{udp}rx_ring = 8192\n"),
            "x.toml:3:11: data.fill_ring: 4096 is less than rx_ring = 8192",
        ),
        (
            &format!("{udp}tx_ring = 8192\n"),
            "x.toml:3:11: data.completion_ring: 4096 is less than tx_ring = 8192",
        ),
        (
            &format!("{udp}[faults]\nloss = 1.5\n"),
            "x.toml:4:8: faults.loss: 1.5 is out of range: use 0 to 1",
        ),
        (
            &format!("{udp}[faults]\nreorder = nan\n"),
            "x.toml:4:11: faults.reorder: NaN is out of range",
        ),
        (
            &format!("{udp}[faults]\nseed = -1\n"),
            "x.toml:4:8: faults.seed: invalid value: integer `-1`, expected u64",
        ),
        (
            &format!("{udp}[log]\nlevel = \"loud\"\n"),
            "x.toml:4:9: log.level: unknown variant `loud`",
        ),
        (
            &format!("{udp}[control]\nlisten = \"here\"\n"),
            "x.toml:4:10: control.listen: invalid socket address syntax",
        ),
        (&format!("{udp}[control]\ntoken = \"\"\n"), "x.toml:4:9: control.token: empty"),
        (
            &format!("{udp}[control]\njoin_timeout_s = 0\n"),
            "x.toml:4:18: control.join_timeout_s: 0 is out of range: use 1 to 3600",
        ),
        (&format!("{udp}[control]\nlisten = \n"), "x.toml:4:10: "),
        (&format!("{udp}[extra]\n"), "x.toml:3:2: unknown field `extra`"),
    ];
    for (text, expected) in cases {
        let message = refusal(text);
        assert!(message.starts_with(expected), "expected {expected}\n   found {message}");
        assert!(!message.contains('\n'), "{message:?}");
    }
}

#[test]
fn frames_follow_from_mtu_and_memory() {
    let of = |mtu: u16, memory| {
        let text = format!("[data]\nport = \"udp\"\nmtu = {mtu}\n{memory}\n");
        let c = parse(&text).unwrap();
        (c.data.chunk_bytes, c.frame_bytes(), c.frames_per_core(), c.job_frames_per_core())
    };
    assert_eq!(of(1500, ""), (1408, 2048, 131_072, 124_672));
    assert_eq!(of(3498, "memory_mib = 64"), (3392, 4096, 16_384, 9_984));
    assert_eq!(of(1720, "frames = 6401"), (1600, 2048, 6_401, 1));
    assert_eq!(of(1721, "frames = 6401"), (1600, 4096, 6_401, 1));
    assert_eq!(of(3768, "frames = 7000").1, 4096);
}

#[test]
fn the_token_is_not_shown() {
    let config = parse("[control]\ntoken = \"hush\"\n[data]\nport = \"udp\"\n").unwrap();
    assert_eq!(config.control.token.as_deref(), Some("hush"));
    assert!(!format!("{config:?}").contains("hush"));
}

#[test]
fn multicast_blocks_have_an_address_for_each_job() {
    let groups = |list: &str| {
        parse(&format!("[data]\nport = \"udp\"\nmulticast = {list}\n")).map(|c| c.data.groups)
    };
    let default = groups("[\"239.255.71.0/24\", \"ff15::8047:4200/120\"]").unwrap();
    assert_eq!(default, Groups::default());
    assert_eq!(default.of(255, true), Some("239.255.71.255".parse().unwrap()));
    assert_eq!(default.of(255, false), Some("ff15::8047:42ff".parse().unwrap()));
    assert_eq!(groups("[]").unwrap(), Groups::NONE);
    let one = groups("[\"239.1.0.0/16\"]").unwrap();
    assert_eq!((one.of(7, true), one.of(7, false)), (Some([239, 1, 0, 7].into()), None));
    for (block, reason) in [
        ("239.1.2.3", "is no block of addresses"),
        ("239.1.2.0/24x", "is no block of addresses"),
        ("239.1.2.0/25", "too few addresses, one for each of 256 jobs: use /24 or less"),
        ("ff15::/121", "use /120 or less"),
        ("10.0.0.0/24", "10.0.0.0 is no multicast address"),
        ("224.0.0.0/24", "routing protocols"),
        ("239.1.2.1/24", "the bits behind the first 24 must be 0"),
        ("ff15::1/120", "the bits behind the first 120 must be 0"),
        ("239.2.0.0/24\", \"239.1.0.0/24", "239.1.0.0/24 is the second block of its family"),
    ] {
        let error = groups(&format!("[\"{block}\"]")).unwrap_err().to_string();
        assert!(error.starts_with("x.toml:3:") && error.contains("data.multicast"), "{error}");
        assert!(error.contains(reason), "{error}");
    }
}

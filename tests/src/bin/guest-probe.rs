//! What the test of zero-copy (scripts/zero-copy-test.sh) asks inside its guest that the product
//! cannot answer for itself.

use clap::Parser;
use gradbox::nic::{Feature, KernelNic, Nic, NicError};
use gradbox_protocol::{Header, Kind};
use gradbox_tests::packets;
use gradbox_tests::watch::{self, Frames, Sizes, Socket, WatchError};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::process::ExitCode;
use std::thread;
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// Between two looks at the rings: much less than a frame's way round.
const LOOK_EVERY: Duration = Duration::from_millis(1);

#[derive(Parser)]
enum Command {
    /// Watch the rings of a box until it ends, and tell what its frames did.
    Watch(Watch),
    /// Send packets that the XDP program lets through and the box refuses: they cost frames.
    Flood(Flood),
    /// Switch an offload of an interface, where it has it.
    Offload(Offload),
}

#[derive(clap::Args)]
struct Watch {
    /// Process of the box.
    #[arg(long)]
    pid: i32,
    /// Entries of its fill, RX, TX and completion ring.
    #[arg(long, value_name = "F,R,T,C", value_parser = sizes)]
    rings: Sizes,
    /// Bytes of a frame.
    #[arg(long)]
    frame_bytes: u64,
    /// What the kernel must say of each socket.
    #[arg(long)]
    mode: Mode,
    /// Results that must have left in the frames that their parts came in.
    #[arg(long)]
    results: u64,
    /// The fill ring of the first socket must have been empty at some time.
    #[arg(long)]
    runs_dry: bool,
    /// Seconds to watch at the longest.
    #[arg(long, default_value_t = 150)]
    seconds: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Mode {
    Zerocopy,
    Copy,
}

#[derive(clap::Args)]
struct Flood {
    /// A shard's address and port.
    #[arg(long)]
    to: SocketAddr,
    /// Address of a worker that has joined.
    #[arg(long)]
    from: std::net::IpAddr,
    #[arg(long)]
    packets: u32,
    /// Seconds to send at the longest: a network can hold a sender up.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
}

#[derive(clap::Args)]
struct Offload {
    #[arg(long)]
    interface: String,
    /// The kernel's name of it.
    #[arg(long)]
    feature: String,
    /// Off rather than on.
    #[arg(long)]
    off: bool,
}

fn sizes(text: &str) -> Result<Sizes, String> {
    let numbers: Result<Vec<u32>, _> = text.split(',').map(str::parse).collect();
    match numbers.as_deref() {
        Ok(&[fill, rx, tx, completion]) => Ok(Sizes { fill, rx, tx, completion }),
        _ => Err("needs four numbers with commas between them".to_owned()),
    }
}

fn main() -> ExitCode {
    let done = match Command::parse() {
        Command::Watch(args) => watch(&args)
            .map_err(|e| e.to_string())
            .and_then(|wrong| if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }),
        Command::Flood(args) => flood(&args).map_err(|e| e.to_string()),
        Command::Offload(args) => offload(&args).map_err(|e| e.to_string()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            eprintln!("guest-probe: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// Watches, and says what was not as it must be.
fn watch(args: &Watch) -> Result<Vec<String>, WatchError> {
    watch::go_first()?;
    let (process, mut sockets) = Socket::all_of(args.pid, args.rings)?;
    let mut frames: Vec<_> = sockets.iter().map(|_| Frames::new(args.frame_bytes)).collect();
    let mut ahead = vec![0; sockets.len()];
    let mut least = u32::MAX;
    let mut wrong = Vec::new();
    for (queue, socket) in sockets.iter().enumerate() {
        let zero_copy = socket.is_zero_copy()?;
        if zero_copy != (args.mode == Mode::Zerocopy) {
            wrong.push(format!("socket {queue}: XDP_OPTIONS says zero-copy = {zero_copy}"));
        }
    }
    println!("watching {} socket(s)", sockets.len());
    let deadline = Instant::now() + Duration::from_secs(args.seconds);
    let mut over = false;
    while !over {
        // One look more after the end.
        over = watch::ended(&process, LOOK_EVERY)?;
        if Instant::now() > deadline {
            wrong.push(format!("the box still runs after {} s", args.seconds));
            break;
        }
        least = sockets[0].left_to_take().min(least);
        for ((socket, frames), ahead) in sockets.iter_mut().zip(&mut frames).zip(&mut ahead) {
            *ahead = socket.taken_ahead().max(*ahead);
            frames.note(&socket.news()?);
        }
    }
    let mut reflected = 0;
    for (queue, (frames, &ahead)) in frames.iter().zip(&ahead).enumerate() {
        let seen = frames.seen();
        println!(
            "socket {queue}: taken ahead {ahead}, received {}, sent {}, of these reflected {}, given \
             back {}, of these strange {}",
            seen.received, seen.sent, seen.reflected, seen.given_back, seen.strange
        );
        reflected += seen.reflected;
        // A driver that works in the frames takes a ring of them in advance (256 entries are usual);
        // to copy, each is taken when its packet is there.
        let as_mode = if args.mode == Mode::Zerocopy { ahead >= 128 } else { ahead < 64 };
        if !as_mode {
            wrong.push(format!("socket {queue}: {ahead} frames taken ahead"));
        }
        if seen.given_back != seen.sent || seen.strange > 0 {
            wrong.push(format!(
                "socket {queue}: of {} frames sent {} came back, {} of them strange",
                seen.sent, seen.given_back, seen.strange
            ));
        }
    }
    println!("socket 0: the fill ring had {least} frames left at the least");
    if args.runs_dry && least > 0 {
        wrong.push(format!("the fill ring never ran dry: {least} frames were left"));
    }
    if reflected < args.results {
        wrong.push(format!(
            "{reflected} answers left in the frame that their packet came in, at least {} must",
            args.results
        ));
    }
    Ok(wrong)
}

/// An interface without the offload is as good as one that has switched it off.
fn offload(args: &Offload) -> Result<(), NicError> {
    let nic = KernelNic::open(&args.interface)?;
    let wanted = !args.off;
    let other = |f: &Feature| f.name == args.feature && f.on != wanted;
    if nic.features()?.iter().any(other) {
        nic.set_feature(&args.feature, wanted)?;
    }
    Ok(())
}

/// Sends packets of a job that nobody has.
fn flood(args: &Flood) -> io::Result<()> {
    let socket = UdpSocket::bind((args.from, 0))?;
    socket.set_nonblocking(true)?;
    let header: Header = packets::header(Kind::Push, u16::MAX, 0, 0);
    let deadline = Instant::now() + Duration::from_secs(args.seconds);
    let mut sent = 0;
    while sent < args.packets && Instant::now() < deadline {
        match socket.send_to(header.as_bytes(), args.to) {
            Ok(_) => sent += 1,
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::OutOfMemory) => {
                thread::sleep(LOOK_EVERY);
            }
            Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => thread::sleep(LOOK_EVERY),
            Err(e) => return Err(e),
        }
    }
    println!("sent {sent} of {} packets", args.packets);
    Ok(())
}

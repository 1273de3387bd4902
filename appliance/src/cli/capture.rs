//! `gradbox capture`: the packets of a running box into a file for Wireshark.

use crate::capture::file::{Format, PacketFile};
use crate::capture::record::{self, Begin, Record, RecordError};
use anyhow::{Context, bail};
use gradbox_protocol::control::Refusal;
use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::num::{NonZeroU16, NonZeroU32};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Longest wait for the box to begin.
const BEGIN: Duration = Duration::from_secs(5);

/// The box says something several times a second; after this long without a word it is gone.
const SILENCE: Duration = Duration::from_secs(5);

/// Time between two looks at Ctrl-C.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// Records that may wait for the file.
const WAITING: usize = 4096;

/// Write the packets of a running box, which tcpdump cannot see, to a file for Wireshark.
///
/// Ends with Ctrl-C, and when the box stops; the file is complete then. Wireshark reads the packets
/// with `-X lua_script:scripts/wireshark/gradbox.lua`.
#[derive(clap::Args)]
pub(super) struct RunCapture {
    /// Control plane of the box.
    #[arg(
        long = "box",
        alias = "control",
        value_name = "HOST:PORT",
        default_value = "127.0.0.1:9099"
    )]
    address: String,
    /// File to write: FILE.pcap, or FILE.pcapng, which also has each packet's direction, core, and
    /// frame in the UMEM.
    #[arg(short, long, value_name = "FILE")]
    out: PathBuf,
    /// Capture one of so many chunks, with all that is sent of it, and one of so many of the packets
    /// that are of no chunk (QUERY, STATUS, PING, PONG).
    #[arg(long, value_name = "N", default_value = "1")]
    sample: NonZeroU32,
    /// Capture this job only; it need not have begun.
    #[arg(long)]
    job: Option<String>,
    /// End after so many seconds.
    #[arg(long, value_name = "S", value_parser = super::all_reduce::seconds)]
    seconds: Option<Duration>,
    /// End after so many packets.
    #[arg(long, value_name = "K", value_parser = clap::value_parser!(u64).range(1..))]
    packets: Option<u64>,
    /// Bytes to keep of each packet; all of them by default. 74 are the headers over IPv4.
    #[arg(long, value_name = "SNAPLEN")]
    bytes: Option<NonZeroU16>,
    /// The box's token, where it has one.
    #[arg(long)]
    token: Option<String>,
}

/// What was captured.
#[derive(Default)]
struct Totals {
    packets: u64,
    bytes: u64,
    missed: u64,
}

/// Captures until something ends it.
///
/// # Errors
/// Where the box refuses or fails, or the file cannot be written. What came before is in the file.
pub(super) fn run(args: &RunCapture) -> anyhow::Result<()> {
    let Some(format) = Format::of(&args.out) else {
        bail!("--out {}: the name must end in .pcap or .pcapng", args.out.display());
    };
    let stop = Arc::new(AtomicBool::new(false));
    let stopped = stop.clone();
    ctrlc::set_handler(move || stopped.store(true, Ordering::Relaxed))
        .context("cannot handle signals")?;
    let mut stream = BufReader::new(request(args)?);
    let begin = record::read_begin(&mut stream)?;
    let shown = args.out.display();
    let out = File::create(&args.out).with_context(|| format!("cannot write {shown}"))?;
    let mut file = PacketFile::begin(BufWriter::new(out), format, begin)?;
    announce(args, begin);
    let (to, records) = mpsc::sync_channel(WAITING);
    // Reading may wait for a box that is gone: not in the thread that writes the file.
    std::thread::Builder::new()
        .name("capture".into())
        .spawn(move || {
            loop {
                let record = record::read(&mut stream);
                let last = !matches!(record, Ok(Record::Packet(_) | Record::Missed(_)));
                if to.send(record).is_err() || last {
                    return;
                }
            }
        })
        .context("cannot start a thread")?;
    let mut totals = Totals::default();
    let ended = copy(args, &records, &stop, &mut file, &mut totals);
    file.end().with_context(|| format!("cannot write {shown}"))?;
    println!(
        "{} packets, {} bytes, {} missed: {shown}",
        totals.packets, totals.bytes, totals.missed
    );
    if totals.missed > 0 {
        eprintln!("packets were missed: capture less with --sample, --job or --bytes");
    }
    ended
}

/// Asks the box for its packets.
fn request(args: &RunCapture) -> anyhow::Result<impl std::io::Read + Send + use<>> {
    let address = args.address.trim_start_matches("http://").trim_end_matches('/');
    let config = ureq::Agent::config_builder()
        .proxy(None)
        .timeout_connect(Some(BEGIN))
        .timeout_recv_response(Some(BEGIN))
        .http_status_as_error(false)
        .build();
    let mut request = ureq::Agent::from(config)
        .get(format!("http://{address}/v1/capture"))
        .query("sample", args.sample.to_string());
    if let Some(job) = &args.job {
        request = request.query("job", job);
    }
    if let Some(bytes) = args.bytes {
        request = request.query("bytes", bytes.to_string());
    }
    if let Some(token) = &args.token {
        request = request.header("Authorization", format!("Bearer {token}"));
    }
    let mut answer =
        request.call().with_context(|| format!("no capture from the box at {address}"))?;
    if answer.status() != 200 {
        let status = answer.status();
        let refusal = answer.body_mut().read_json::<Refusal>();
        let why =
            refusal.map_or_else(|_| format!("it answers {status}"), |refusal| refusal.message);
        bail!("no capture from the box at {address}: {why}");
    }
    Ok(answer.into_body().into_reader())
}

/// Says what is captured: to standard error, as it is no result.
fn announce(args: &RunCapture, begin: Begin) {
    let job = args.job.as_deref().map_or_else(|| "all jobs".to_owned(), |job| format!("job {job}"));
    eprintln!(
        "capturing {job}, 1 of {} chunks, {} cores, up to {} bytes of a packet; Ctrl-C ends it",
        args.sample, begin.shards, begin.kept
    );
}

/// Writes records to the file until the user, a limit or the box ends it.
fn copy(
    args: &RunCapture,
    records: &Receiver<Result<Record, RecordError>>,
    stop: &AtomicBool,
    file: &mut PacketFile<BufWriter<File>>,
    totals: &mut Totals,
) -> anyhow::Result<()> {
    let started = Instant::now();
    let mut heard = started;
    while !stop.load(Ordering::Relaxed)
        && args.seconds.is_none_or(|seconds| started.elapsed() < seconds)
        && args.packets.is_none_or(|packets| totals.packets < packets)
    {
        let record = match records.recv_timeout(LOOK_EVERY) {
            Ok(record) => record?,
            Err(RecvTimeoutError::Timeout) if heard.elapsed() < SILENCE => continue,
            Err(_) => bail!("the box at {} has said nothing for {SILENCE:?}", args.address),
        };
        heard = Instant::now();
        match record {
            Record::Packet(packet) => {
                totals.packets += 1;
                totals.bytes += packet.bytes.len() as u64;
                file.add(&packet)?;
            }
            Record::Missed(missed) => totals.missed = missed,
            Record::End(missed) => {
                totals.missed = missed;
                eprintln!("the box has stopped");
                return Ok(());
            }
        }
    }
    Ok(())
}

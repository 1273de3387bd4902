//! `gradbox all-reduce`: reduces the tensors of a file, or made-up ones of a model's sizes, through
//! the box; with `--verify` compares every bit with the reference.

mod generate;
mod progress;
mod source;
mod verify;

use crate::record::{Record, Round, monotonic_ns};
use anyhow::{Context, ensure};
use gradbox_client::{Options, Tensor, Worker};
use gradbox_protocol::control::TensorEntry;
use gradbox_protocol::{DType, Op, Reply};
use progress::Progress;
use source::Source;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// All-reduce tensors through a box.
#[derive(Clone, Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("tensors").required(true).args(["input", "model"])))]
pub(super) struct AllReduce {
    /// Control plane of the box.
    #[arg(long = "box", value_name = "HOST:PORT")]
    control: String,
    /// Job that the workers meet in.
    #[arg(long)]
    job: String,
    /// Rank of this worker, from 0.
    #[arg(long)]
    rank: u8,
    /// Number of workers.
    #[arg(long)]
    world: u8,
    /// Tensors to reduce, all of one type: f32, f16, bf16 or i32.
    #[arg(value_name = "IN.safetensors", requires = "output")]
    input: Option<PathBuf>,
    /// Where the results of the last round go, under the same names and in the same shapes.
    #[arg(short, long, value_name = "OUT.safetensors")]
    output: Option<PathBuf>,
    /// Made-up tensors instead of a file: of the sizes of this model, such as resnet50, or of those
    /// in this table (header `index,name,numel`).
    #[arg(long, value_name = "NAME|CSV")]
    model: Option<String>,
    /// Put the tensors into buckets as data-parallel training does: last tensor first, and a bucket is
    /// closed when it has reached M MiB (PyTorch: `bucket_cap_mb`). Each bucket is one tensor of the
    /// job.
    #[arg(long, value_name = "M", conflicts_with = "input", value_parser = clap::value_parser!(u32).range(1..))]
    bucket_mib: Option<u32>,
    /// Seed of made-up tensors, the same on every rank.
    #[arg(long, default_value_t = 0, requires = "model")]
    seed: u64,
    /// Type of made-up tensors: f32, f16, bf16 or i32.
    #[arg(long, default_value_t = DType::F32, requires = "model")]
    dtype: DType,
    /// What is done with the elements: sum, avg, min or max.
    #[arg(long, default_value_t = Op::Sum)]
    op: Op,
    /// How results come: unicast, one for each rank, or multicast, one for all.
    #[arg(long, default_value_t = Reply::Unicast)]
    reply: Reply,
    /// Type that f32 tensors travel as: bf16 or f16. Halves the traffic, rounds inputs and results.
    #[arg(long, value_name = "DTYPE")]
    wire_dtype: Option<DType>,
    /// How often to reduce. Made-up tensors differ from round to round.
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Begin each round together with all ranks, however long any of them was busy before; all ranks
    /// must say so. What the times of a round then tell is the all-reduce alone.
    #[arg(long)]
    in_step: bool,
    /// The box's token, where it wants one.
    #[arg(long)]
    token: Option<String>,
    /// Address of this machine to send from, where it has several. Default: the kernel's choice.
    #[arg(long, value_name = "IP")]
    bind: Option<IpAddr>,
    /// Seconds to wait for the other ranks, at join and in each round.
    #[arg(long, value_name = "S", default_value = "60", value_parser = seconds)]
    timeout: Duration,
    /// Seconds to sleep between join and the first packet: makes this rank a straggler.
    #[arg(long, value_name = "S", default_value = "0", value_parser = seconds)]
    delay: Duration,
    /// Show a progress bar where standard error is a terminal.
    #[arg(long)]
    progress: bool,
    /// Compare every bit of every round with the reference, from made-up tensors.
    #[arg(long, conflicts_with = "input")]
    verify: bool,
    /// Compare every bit of every round with the reference, from the inputs of all ranks in order.
    #[arg(long, value_name = "RANK0.safetensors", num_args = 1.., conflicts_with = "model")]
    verify_with: Vec<PathBuf>,
    /// Write times and counters of every round to this file.
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// A number of seconds on the command line.
pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "needs a number of seconds".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|e| e.to_string())
}

/// Runs the command.
///
/// # Errors
/// Where a file cannot be read or written or does not fit, the worker fails, or a result differs from
/// the reference.
pub(super) fn run(args: AllReduce) -> anyhow::Result<()> {
    let mut source = Source::open(&args)?;
    let wire = wire_dtype(source.dtype(), args.wire_dtype)?;
    let others = verify::Inputs::open(&args, &source)?;
    let mut options = Options::new(&args.control, &args.job, args.rank, args.world);
    options.op = args.op;
    options.reply = args.reply;
    options.wire_dtype = wire;
    options.token.clone_from(&args.token);
    options.bind = args.bind;
    options.join_timeout = args.timeout;
    options.timeout = args.timeout;
    options.tensors = source.table();
    if args.in_step {
        options.tensors.push(TensorEntry { name: "barrier".into(), elements: 1 });
    }
    let worker = Worker::join(options)?;
    std::thread::sleep(args.delay);

    let progress = Progress::new(args.progress, args.rounds, source.bytes(wire));
    let mut record = record(&args, &worker, &source, wire);
    for round in 0..args.rounds {
        let mut tensors = source.tensors(round);
        if args.in_step {
            let one = vec![(tensors.len(), Tensor::zeros(source.dtype(), 1))];
            worker.all_reduce_async(one)?.wait(Some(args.timeout))?;
        }
        let before = worker.stats();
        let started = monotonic_ns();
        let report = progress.reduce(&worker, &mut tensors, args.timeout)?;
        let round_record = Round::new(started, monotonic_ns(), report, before, worker.stats());
        progress.line(round, &round_record);
        record.rounds.push(round_record);
        if let Some(inputs) = &others {
            let checked = verify::check(inputs, &args, &source, wire, round, &tensors);
            record.verified = Some(checked.is_ok());
            if checked.is_err() {
                write(&record, args.json.as_deref())?;
            }
            checked?;
        }
        source.give_back(tensors);
    }
    progress.end();
    if let Some(path) = &args.output {
        source.save(path)?;
    }
    write(&record, args.json.as_deref())?;
    worker.leave().context("the results are complete, but the box did not hear the farewell")
}

/// What is written of the whole run, before the first round.
fn record(args: &AllReduce, worker: &Worker, source: &Source, wire_dtype: DType) -> Record {
    let (info, joined) = (worker.box_info(), worker.joined());
    Record {
        job: args.job.clone(),
        rank: args.rank,
        world: args.world,
        op: args.op,
        reply: args.reply,
        dtype: source.dtype(),
        wire_dtype,
        box_port: info.port.clone(),
        box_mode: info.mode.clone(),
        shards: joined.shards,
        chunk_bytes: joined.chunk_bytes,
        tensors: source.table().len(),
        verified: None,
        rounds: Vec::new(),
    }
}

/// Writes the record to `path`, where there is one.
fn write(record: &Record, path: Option<&Path>) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    let text = serde_json::to_string_pretty(record)?;
    std::fs::write(path, text + "\n").with_context(|| format!("writing {}", path.display()))
}

/// The type that tensors of `dtype` travel as.
fn wire_dtype(dtype: DType, wanted: Option<DType>) -> anyhow::Result<DType> {
    let Some(wire) = wanted else { return Ok(dtype) };
    ensure!(
        wire == dtype || (dtype == DType::F32 && matches!(wire, DType::F16 | DType::Bf16)),
        "--wire-dtype {wire}: the tensors are {dtype}; only f32 tensors may travel as another type, bf16 or f16"
    );
    Ok(wire)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Debug, Parser)]
    struct Cli {
        #[command(flatten)]
        args: AllReduce,
    }

    fn parse(rest: &str) -> Result<AllReduce, clap::Error> {
        let head = "x --box 127.0.0.1:1 --job j --rank 0 --world 1";
        let words = head.split(' ').chain(rest.split(' '));
        Cli::try_parse_from(words).map(|cli| cli.args)
    }

    #[test]
    fn arguments() {
        let args = parse("--model m.csv --dtype bf16 --op avg --timeout 0.5 --verify").unwrap();
        assert_eq!((args.dtype, args.op), (DType::Bf16, Op::Avg));
        assert_eq!(args.timeout, Duration::from_millis(500));
        assert_eq!(parse("--model resnet50 --bucket-mib 25").unwrap().bucket_mib, Some(25));
        let args = parse("in.st -o out.st --verify-with a b").unwrap();
        assert_eq!(args.verify_with.len(), 2);
        for wrong in [
            "--rounds 2",
            "in.st",
            "in.st -o out.st --model m.csv",
            "in.st -o out.st --verify",
            "--model m.csv --verify-with a",
            "--model m.csv --dtype f64",
            "--model m.csv --rounds 0",
            "--model m.csv --bucket-mib 0",
            "in.st -o out.st --bucket-mib 25",
            "--model m.csv --timeout -1",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn wire_types() {
        assert_eq!(wire_dtype(DType::F32, Some(DType::Bf16)).unwrap(), DType::Bf16);
        assert_eq!(wire_dtype(DType::I32, None).unwrap(), DType::I32);
        assert!(wire_dtype(DType::F32, Some(DType::I32)).is_err());
        assert!(wire_dtype(DType::F16, Some(DType::Bf16)).is_err());
    }
}

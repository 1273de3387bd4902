//! Small runs over loopback, and everything that may go wrong on the way.

use super::*;
use crate::bench::network::{NetworkError, Wire};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};

fn settings(workers: u8) -> Settings {
    let tuned = Settings::tuned(workers, DType::F32, true, true);
    let time = Duration::from_millis(20);
    Settings { block_bytes: 20_000, window: 3, time, samples: 2, client_cpu: 0, ..tuned }
}

fn loopback(workers: u8) -> Connections {
    let listener = socket::listen(Ipv4Addr::LOCALHOST).unwrap();
    let address = socket::local_address(&listener).unwrap();
    let dial = |_| socket::dial(Ipv4Addr::LOCALHOST, address).unwrap();
    socket::accept(&listener, (0..workers).map(dial).collect()).unwrap()
}

/// The aggregator alone, with workers that the test plays.
fn serve(servers: Vec<TcpStream>, settings: &Settings) -> Result<(), TcpError> {
    let reduce = Reduce::select(Isa::detect(), settings.dtype, Op::Sum, servers.len()).unwrap();
    aggregator::run(servers, settings, &reduce, &AtomicBool::new(false)).map(drop)
}

#[test]
fn sums_have_the_bits_of_the_reference() {
    for dtype in DType::ALL {
        for (reply_all, zero_copy) in [(true, true), (true, false), (false, false), (false, true)] {
            let settings = Settings { dtype, reply_all, zero_copy, ..settings(3) };
            let samples = between(loopback(3), &settings).unwrap();
            assert_eq!((samples.gbps.len(), samples.cpu_s_per_gb.len()), (2, 2));
            assert!(samples.gbps.iter().chain(&samples.cpu_s_per_gb).all(|&x| x > 0.0));
            assert!(samples.checked > 0, "{settings:?}");
        }
    }
}

#[test]
fn a_pair_is_measured_with_and_without_offloads() {
    let pair = match Pair::new(4, Wire { mtu: 1500, queues: 1 }) {
        Err(NetworkError::Namespace { source, .. })
            if source.kind() == std::io::ErrorKind::PermissionDenied =>
        {
            eprintln!("skipped: needs root");
            return;
        }
        made => made.unwrap(),
    };
    for offloads in [true, false] {
        pair.offloads(offloads).unwrap();
        let tuned = Settings::tuned(4, DType::Bf16, true, offloads);
        let time = Duration::from_millis(50);
        let samples = measure(&pair, &Settings { time, samples: 1, client_cpu: 0, ..tuned });
        assert!(samples.unwrap().checked > 0);
    }
}

#[test]
fn a_worker_that_closes_is_named() {
    let settings = settings(2);
    let Connections { servers, clients } = loopback(2);
    let workers = thread::spawn(move || {
        for mut client in &clients {
            client.write_all(&[0; 20_000]).unwrap();
        }
        let mut sum = [0; 20_000];
        (&clients[1]).read_exact(&mut sum).unwrap();
        clients[1].shutdown(Shutdown::Write).unwrap();
        (&clients[0]).write_all(&[0; 20_000]).unwrap();
        clients
    });
    let error = serve(servers, &settings).unwrap_err();
    assert!(matches!(error, TcpError::Closed { rank: 1, block: 1, .. }), "{error}");
    drop(workers.join());
}

#[test]
fn silence_ends_with_an_error() {
    let Connections { servers, clients } = loopback(2);
    (&clients[0]).write_all(&[0; 20_000]).unwrap();
    (&clients[1]).write_all(&[0; 100]).unwrap();
    let error = serve(servers, &settings(2)).unwrap_err();
    assert!(matches!(error, TcpError::Stalled { rank: 1, block: 0, .. }), "{error}");

    let Connections { servers, clients } = loopback(2);
    let error = load::run(clients, &settings(2), &AtomicBool::new(false)).unwrap_err();
    assert!(matches!(error, TcpError::Stalled { side: Side::Workers, .. }), "{error}");
    drop(servers);
}

#[test]
fn wrong_bits_are_noticed() {
    let Connections { servers, clients } = loopback(2);
    let echo = |mut server: TcpStream| {
        let mut buffer = [0; 4096];
        while let Ok(n @ 1..) = server.read(&mut buffer) {
            if server.write_all(&buffer[..n]).is_err() {
                break;
            }
        }
    };
    let echoes: Vec<_> = servers.into_iter().map(|s| thread::spawn(move || echo(s))).collect();
    let error = load::run(clients, &settings(2), &AtomicBool::new(false)).unwrap_err();
    assert!(matches!(error, TcpError::Bits { block: 0, .. }), "{error}");
    echoes.into_iter().for_each(|echo| echo.join().unwrap());
}

#[test]
fn settings_are_checked() {
    let good = settings(2);
    check(&good).unwrap();
    for bad in [
        Settings { workers: 0, ..good },
        Settings { workers: 33, ..good },
        Settings { block_bytes: 0, ..good },
        Settings { block_bytes: 6, ..good },
        Settings { block_bytes: 2 << 20, ..good },
        Settings { window: 1, ..good },
        Settings { samples: 0, ..good },
        Settings { time: Duration::ZERO, ..good },
    ] {
        let error = check(&bad).unwrap_err().to_string();
        assert!(error.contains(": must be "), "{error}");
    }
    let elsewhere = Settings { server_cpu: 9999, ..good };
    let error = between(loopback(2), &elsewhere).unwrap_err();
    assert!(matches!(error, TcpError::Cpu { cpu: 9999, side: Side::Aggregator }), "{error}");
}

//! `gradbox bench replay` from outside: network, box, workers and figures. Needs root; without it
//! the tests say so and pass.

use serde_json::Value;
use std::process::Command;

/// Runs `gradbox bench replay` with `arguments`; its one figure, where there is the permission.
fn replay(arguments: &str) -> Option<Value> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gradbox"));
    command.args(["bench", "replay", "--tiny", "--json", "/dev/stderr"]);
    let output = command.args(arguments.split(' ')).output().unwrap();
    let (out, err) = [output.stdout, output.stderr].map(|b| String::from_utf8(b).unwrap()).into();
    if err.contains("network namespaces need root") {
        println!("skipped: needs root");
        return None;
    }
    assert!(output.status.success(), "{out}\n{err}");
    assert!(out.contains("replay: the all-reduces of a training step"), "{out}");
    let figures: Value = serde_json::from_str(&err).unwrap();
    assert_eq!(figures["results"].as_array().unwrap().len(), 1, "{figures}");
    Some(figures["results"][0].clone())
}

#[test]
fn a_step_over_af_xdp() {
    let Some(figure) = replay("--model resnet50") else { return };
    assert_eq!(figure["bench"], "replay");
    assert_eq!((&figure["model"], &figure["workers"]), (&"resnet18".into(), &2.into()));
    assert_eq!((&figure["port"], &figure["checked"]), (&"xdp".into(), &true.into()));
    assert!(figure["seconds"].as_f64().unwrap() > 0.0 && figure["ideal_seconds"].is_null());
}

#[test]
fn a_step_over_limited_links_in_half_the_bytes_to_all_at_once() {
    let arguments = "--port udp --link 1gbit --wire-dtype bf16 --reply multicast --mtu 3498";
    let Some(figure) = replay(arguments) else { return };
    assert_eq!((&figure["dtype"], &figure["reply"]), (&"bf16".into(), &"multicast".into()));
    assert_eq!((&figure["mode"], &figure["checked"]), (&"udp".into(), &true.into()));
    // 11,689,512 elements of 2 bytes, and headers of 74 to each 3392: 0.191 s at 1 Gbit/s.
    let ideal = figure["ideal_seconds"].as_f64().unwrap();
    assert!((ideal - 0.1911).abs() < 0.0001, "{ideal}");
    let found = figure["percent_of_limit"].as_f64().unwrap();
    assert!(found > 0.0 && found < 105.0, "{found}");
}

#[test]
fn what_cannot_be_is_said() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gradbox"));
    let output = command.args(["bench", "replay", "--model", "no-such-model"]).output().unwrap();
    assert!(!output.status.success());
    let err = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(err.contains("no-such-model") && err.contains("resnet50"), "{err}");
}

//! Joins that cannot be served, and what they are told to change.

use gradbox_tests::lab::Lab;
use gradbox_tests::lab::appliance::{Setup, TheBox};
use gradbox_tests::lab::job::Job;
use serde_json::{Value, json};

/// A join that would be served.
fn good() -> Value {
    json!({
        "rank": 0, "world": 2, "dtype": "f32", "op": "sum", "token": "secret", "instance": 1,
        "address": "127.0.0.1:40000", "tensors": [{"name": "t", "elements": 1000}],
    })
}

fn join(the_box: &TheBox<'_>, change: Value) -> (u16, Value) {
    let mut request = good();
    let fields = change.as_object().expect("fields").clone();
    request.as_object_mut().expect("an object").extend(fields);
    let (code, body) = the_box.request("POST", "/v1/jobs/j/join", &request.to_string());
    (code, serde_json::from_str(&body).expect("JSON"))
}

#[test]
fn refused_joins_say_what_to_change() {
    let lab = Lab::loopback();
    let setup = Setup { token: Some("secret"), ..Setup::UDP };
    let the_box = TheBox::start(&lab, &setup);
    for (change, code, word, says) in [
        (json!({"dtype": "f64"}), 422, "bad_body", "f32"),
        (json!({"op": "product"}), 422, "bad_body", "sum"),
        (json!({"reply": "broadcast"}), 422, "bad_body", "multicast"),
        (json!({"rank": 2}), 422, "bad_rank", "use 0 to 1"),
        (json!({"world": 33}), 422, "bad_world", "use 1 to 32"),
        (json!({"token": "guess"}), 403, "bad_token", "control.token"),
        (json!({"token": null}), 403, "bad_token", "missing"),
        (json!({"tensors": []}), 422, "bad_tensors", "tensor"),
        (json!({"address": "[::1]:40000"}), 422, "address_family", "is IPv6"),
        (json!({"colour": "blue"}), 422, "bad_body", "colour"),
    ] {
        let (found, body) = join(&the_box, change.clone());
        assert_eq!((found, &body["error"]), (code, &json!(word)), "{change}: {body}");
        let message = body["message"].as_str().expect("a message");
        assert!(message.contains(says), "{change}: {message}");
    }
    let elements = 30 << 20;
    let (code, body) = join(&the_box, json!({"tensors": [{"name": "t", "elements": elements}]}));
    assert_eq!((code, &body["error"]), (507, &json!("too_large")), "{body}");
    let (needed, available) = (&body["needed_bytes"], &body["available_bytes"]);
    let message = body["message"].as_str().expect("a message");
    assert!(needed.as_u64() > available.as_u64() && available.as_u64() > Some(0), "{body}");
    assert!(message.contains(&needed.to_string()), "{message}");
    assert!(message.contains(&available.to_string()) && message.contains("memory_mib"));
    // None of them has left a trace; a good one is answered, and its rank is then taken.
    assert!(the_box.status().jobs.is_empty());
    assert_eq!(join(&the_box, json!({})), (202, json!({"missing": [1]})));
    let other = json!({"instance": 2, "address": "127.0.0.1:40001"});
    let (code, body) = join(&the_box, other);
    assert_eq!((code, &body["error"]), (409, &json!("duplicate_rank")), "{body}");
    assert!(body["message"].as_str().expect("a message").contains("127.0.0.1:40000"));
}

#[test]
fn workers_pass_refusals_on() {
    let lab = Lab::loopback();
    let the_box = TheBox::start(&lab, &Setup { token: Some("secret"), ..Setup::UDP });
    let job = Job::made("j", 1, "f32", &[1000]);
    let fail = |job: &Job, own: &[&str]| {
        let ended = job.worker(&lab, &the_box.control, 0, own).end();
        assert!(!ended.status.success(), "{ended:?}");
        ended.err
    };
    let err = fail(&job, &["--token", "guess"]);
    assert!(err.contains("HTTP 403, bad_token") && err.contains("control.token"), "{err}");
    let large = Job::made("l", 1, "f32", &[30 << 20]);
    let err = fail(&large, &["--token", "secret"]);
    assert!(err.contains("HTTP 507, too_large") && err.contains("memory_mib"), "{err}");
    let _ = job.worker(&lab, &the_box.control, 0, &["--token", "secret"]).succeed();
    the_box.assert_empty();
}

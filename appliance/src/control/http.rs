//! The paths: thin handlers around [`Plane`].

use super::capture::Asked;
use super::metrics;
use super::plane::Plane;
use super::refused::{MAX_BODY, Refused};
use super::registry::Answer;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, JsonRejection, PathRejection, QueryRejection};
use axum::extract::{DefaultBodyLimit, Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use gradbox_protocol::control::{BoxInfo, JoinRequest, Status, Waiting};
use serde::de::DeserializeOwned;
use serde_json::json;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Longest time from a request's header to its answer.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Longest wait for the cores before a worker is told to ask again; idle ones sleep 5 ms.
const CORES_WAIT: Duration = Duration::from_millis(500);

/// The plane, shared by the tasks of the control plane's one thread: never waited for.
#[derive(Clone)]
pub(super) struct Shared(Arc<Mutex<Plane>>);

impl Shared {
    pub(super) fn new(plane: Plane) -> Self {
        Self(Arc::new(Mutex::new(plane)))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Plane> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All paths.
pub(super) fn router(plane: Shared) -> Router {
    Router::new()
        .route("/v1/health", get(health))
        .route("/v1/box", get(the_box))
        .route("/v1/status", get(status))
        .route("/metrics", get(metrics))
        .route("/v1/capture", get(capture))
        .route("/v1/jobs/{name}/join", post(join))
        .route("/v1/jobs/{name}/leave", post(leave))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .layer(DefaultBodyLimit::max(MAX_BODY))
        .layer(middleware::from_fn(bounded))
        .with_state(plane)
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status());
        (status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), Json(self.body())).into_response()
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> Response {
        match self {
            Self::Joined(joined) => (StatusCode::OK, Json(joined)).into_response(),
            Self::Waiting(waiting) => (StatusCode::ACCEPTED, Json(waiting)).into_response(),
        }
    }
}

async fn health(State(plane): State<Shared>) -> Result<Json<serde_json::Value>, Refused> {
    plane.lock().healthy()?;
    Ok(Json(json!({"state": "ready"})))
}

async fn the_box(State(plane): State<Shared>) -> Json<BoxInfo> {
    Json(plane.lock().info.clone())
}

async fn status(State(plane): State<Shared>) -> Json<Status> {
    Json(plane.lock().status())
}

async fn metrics(State(plane): State<Shared>) -> Response {
    match metrics::render(&mut plane.lock()) {
        Ok(text) => ([(header::CONTENT_TYPE, metrics::CONTENT_TYPE)], text).into_response(),
        Err(error) => Refused::NotServed { reason: error.to_string() }.into_response(),
    }
}

async fn join(
    State(plane): State<Shared>,
    name: Result<Path<String>, PathRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Answer, Refused> {
    let name = job_name(name)?;
    let request: JoinRequest = parse(body)?;
    let answer = plane.lock().join(&name, &request)?;
    if matches!(answer, Answer::Joined(_)) && !cores_know(&plane).await {
        return Ok(Answer::Waiting(Waiting { missing: Vec::new() }));
    }
    Ok(answer)
}

/// Waits until all cores know of a new job: its workers send as soon as they are answered, and a
/// core that does not know the job would tell them that it has ended.
async fn cores_know(plane: &Shared) -> bool {
    let deadline = Instant::now() + CORES_WAIT;
    while !plane.lock().cores_know() {
        if Instant::now() > deadline {
            return false;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    true
}

async fn leave(
    State(plane): State<Shared>,
    name: Result<Path<String>, PathRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<serde_json::Value>, Refused> {
    let name = job_name(name)?;
    plane.lock().leave(&name, &parse(body)?)?;
    Ok(Json(json!({})))
}

async fn capture(
    State(plane): State<Shared>,
    headers: HeaderMap,
    query: Result<Query<Asked>, QueryRejection>,
) -> Result<Response, Refused> {
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let token = bearer.and_then(|value| value.strip_prefix("Bearer "));
    let (capture, guard) = {
        let mut locked = plane.lock();
        let locked = &mut *locked;
        // Gradients are for those who may join.
        locked.registry.check_token(token)?;
        locked.healthy()?;
        let Query(asked) =
            query.map_err(|rejection| Refused::BadQuery { reason: rejection.body_text() })?;
        let capture = locked.captures.begin(&mut locked.cores, &locked.registry, asked)?;
        let guard = capture.guard(plane.clone());
        (capture, guard)
    };
    // What comes from now on is captured.
    if !cores_know(&plane).await {
        let reason = "a core has not begun to copy packets in time".to_owned();
        return Err(Refused::NotServed { reason });
    }
    Ok(([(header::CONTENT_TYPE, "application/octet-stream")], capture.into_body(guard))
        .into_response())
}

async fn unknown_path(request: Request) -> Refused {
    Refused::UnknownPath { path: shown(&request) }
}

async fn wrong_method(request: Request) -> Refused {
    Refused::WrongMethod { path: shown(&request), method: request.method().to_string() }
}

/// A request that never ends must not hold a connection for ever, and one that announces too much
/// is not read at all.
async fn bounded(request: Request, next: Next) -> Response {
    let announced = request.headers().get(header::CONTENT_LENGTH);
    let announced = announced.and_then(|n| n.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|n| n > MAX_BODY as u64) {
        return Refused::BodyTooLarge.into_response();
    }
    match tokio::time::timeout(TIMEOUT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => Refused::Slow { seconds: TIMEOUT.as_secs() }.into_response(),
    }
}

fn shown(request: &Request) -> String {
    request.uri().path().chars().take(80).collect()
}

fn job_name(name: Result<Path<String>, PathRejection>) -> Result<String, Refused> {
    match name {
        Ok(Path(name)) => Ok(name),
        Err(rejection) => Err(Refused::BadName { name: rejection.body_text() }),
    }
}

/// The body as `T`, whatever content type it claims to be of.
fn parse<T: DeserializeOwned>(body: Result<Bytes, BytesRejection>) -> Result<T, Refused> {
    let body = body.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Refused::BodyTooLarge,
        _ => Refused::NotJson { reason: rejection.body_text() },
    })?;
    let Json(value) = Json::from_bytes(&body).map_err(|rejection| {
        // "Failed to deserialize the JSON body into the target type: FIELD: REASON"
        let text = rejection.body_text();
        let reason = text.split_once(": ").map_or(&*text, |(_, reason)| reason).to_owned();
        match rejection {
            JsonRejection::JsonDataError(_) => Refused::BadBody { reason },
            _ => Refused::NotJson { reason },
        }
    })?;
    Ok(value)
}

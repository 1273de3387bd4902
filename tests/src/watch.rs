//! The rings of another process's AF_XDP sockets, read from outside while it works: what the
//! kernel and the box really do with each frame, whatever the box says of itself.

mod frames;
mod rings;

pub use frames::{Frames, Seen};
pub use rings::{Desc, News, Sizes, Socket, WatchError, ended, go_first};

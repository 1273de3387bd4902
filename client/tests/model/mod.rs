//! A second, slow and obviously right implementation of the box's slot rules, without I/O.

use gradbox_protocol::header::GROUP_RANK;
use gradbox_protocol::layout::Layout;
use gradbox_protocol::status::StatusBody;
use gradbox_protocol::{DType, ErrorCode, Flags, Header, Kind, Op, STATUS_CHUNKS};
use half::{bf16, f16};
use zerocopy::IntoBytes;

pub(crate) const JOB: u16 = 7;

/// A pseudo-random sequence (splitmix64): the same seed, the same test.
#[derive(Clone, Debug)]
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

/// Combines one payload per rank, in rank order.
pub(crate) fn combine(dtype: DType, op: Op, inputs: &[&[u8]]) -> Vec<u8> {
    let mut out = Vec::new();
    let size = dtype.size();
    for i in (0..inputs[0].len()).step_by(size) {
        let raw = |x: &&[u8]| -> [u8; 4] {
            let mut b = [0; 4];
            b[..size].copy_from_slice(&x[i..i + size]);
            b
        };
        if dtype == DType::I32 {
            let v = inputs.iter().map(|x| i64::from(i32::from_le_bytes(raw(x))));
            let v = match op {
                Op::Sum => v.sum::<i64>(),
                Op::Avg => v.sum::<i64>() / inputs.len() as i64,
                Op::Min => v.min().unwrap(),
                Op::Max => v.max().unwrap(),
            };
            out.extend((v as i32).to_le_bytes());
            continue;
        }
        let float = |x: &&[u8]| match dtype {
            DType::F32 => f32::from_le_bytes(raw(x)),
            DType::F16 => f16::from_le_bytes([raw(x)[0], raw(x)[1]]).to_f32(),
            _ => bf16::from_le_bytes([raw(x)[0], raw(x)[1]]).to_f32(),
        };
        let v = inputs.iter().map(float).reduce(|a, b| match op {
            Op::Sum | Op::Avg => a + b,
            Op::Min => a.min(b),
            Op::Max => a.max(b),
        });
        let mut v = v.unwrap();
        if op == Op::Avg {
            v /= inputs.len() as f32;
        }
        match dtype {
            DType::F32 => out.extend(v.to_le_bytes()),
            DType::F16 => out.extend(f16::from_f32(v).to_le_bytes()),
            _ => out.extend(bf16::from_f32(v).to_le_bytes()),
        }
    }
    out
}

#[derive(Clone, Debug, Default)]
struct Slot {
    /// Rounds that are complete; the one being collected has this number.
    completed: u32,
    /// By rank: header and payload for the round being collected.
    parts: Vec<Option<(Header, Vec<u8>)>>,
    /// Result of the round before.
    result: Vec<u8>,
}

/// The box.
#[derive(Debug)]
pub(crate) struct Model {
    pub(crate) dtype: DType,
    pub(crate) op: Op,
    pub(crate) layout: Layout,
    pub(crate) credit: u16,
    /// By rank.
    pub(crate) cookies: Vec<u32>,
    /// Where results go to all ranks at once, the cookie that they carry.
    pub(crate) group_cookie: Option<u32>,
    /// Chunks of rounds that were complete, PUSH that were duplicates.
    pub(crate) duplicates: u64,
    slots: Vec<Slot>,
}

impl Model {
    pub(crate) fn new(dtype: DType, op: Op, world: u8, layout: Layout, credit: u16) -> Self {
        let slot = Slot { parts: vec![None; usize::from(world)], ..Slot::default() };
        Self {
            slots: vec![slot; layout.chunks() as usize],
            cookies: (0..u32::from(world)).map(|r| 0xc00c_1e00 + r).collect(),
            group_cookie: None,
            duplicates: 0,
            dtype,
            op,
            layout,
            credit,
        }
    }

    /// Takes a packet that came, marked or not; returns the packets to send, by rank.
    pub(crate) fn receive(&mut self, datagram: &[u8], marked: bool) -> Vec<(u8, Vec<u8>)> {
        let Some((header, body)) = Header::parse(datagram) else { return Vec::new() };
        if header.kind() == Some(Kind::Ping) {
            return vec![(header.rank, answer(header, Kind::Pong, &[], false))];
        }
        let rank = usize::from(header.rank);
        if header.job.get() != JOB {
            return vec![self.error(header, ErrorCode::UnknownJob)];
        }
        if self.cookies.get(rank) != Some(&header.cookie.get()) {
            return vec![self.error(header, ErrorCode::WrongCookie)];
        }
        match header.kind() {
            Some(Kind::Push) => self.push(header, body, marked),
            Some(Kind::Query) if header.chunk.get() < self.layout.chunks() => {
                vec![self.status(header, header.chunk.get(), marked)]
            }
            Some(Kind::Query) => vec![self.error(header, ErrorCode::WrongChunk)],
            _ => Vec::new(),
        }
    }

    fn error(&self, header: &Header, code: ErrorCode) -> (u8, Vec<u8>) {
        let code = (code as u16).to_le_bytes();
        (header.rank, answer(header, Kind::Error, &[code[0], code[1], 0, 0], false))
    }

    fn push(&mut self, header: &Header, body: &[u8], marked: bool) -> Vec<(u8, Vec<u8>)> {
        let chunk = header.chunk.get();
        match self.layout.chunk_len(header.tensor.get(), chunk) {
            None => return vec![self.error(header, ErrorCode::WrongChunk)],
            Some(len) if usize::from(len) != body.len() => {
                return vec![self.error(header, ErrorCode::WrongLength)];
            }
            Some(_) => {}
        }
        let (dtype, op) = (self.dtype, self.op);
        let mut out = Vec::new();
        let slot = &mut self.slots[chunk as usize];
        let rank = usize::from(header.rank);
        if header.round.get() == slot.completed {
            if slot.parts[rank].is_some() {
                self.duplicates += 1;
            } else {
                slot.parts[rank] = Some((*header, body.to_vec()));
            }
            if slot.parts.iter().all(Option::is_some) {
                let parts: Vec<_> = slot.parts.iter_mut().map(|p| p.take().unwrap()).collect();
                let inputs: Vec<&[u8]> = parts.iter().map(|(_, b)| b.as_slice()).collect();
                slot.result = combine(dtype, op, &inputs);
                slot.completed += 1;
                for (rank, (header, _)) in (0..).zip(&parts) {
                    let mut header = *header;
                    if let Some(cookie) = self.group_cookie {
                        (header.rank, header.cookie) = (GROUP_RANK, cookie.into());
                        header.stamp = 0.into();
                    }
                    out.push((rank, answer(&header, Kind::Result, &slot.result, marked)));
                }
            }
        } else if header.round.get() + 1 == slot.completed {
            self.duplicates += 1;
            out.push((header.rank, answer(header, Kind::Result, &slot.result, marked)));
        } else {
            return vec![self.error(header, ErrorCode::WrongRound)];
        }
        if header.flags & Flags::WANT_STATUS != 0 {
            let step = u32::from(self.layout.shards());
            let back = (chunk / step).min(STATUS_CHUNKS as u32 - 1);
            out.push(self.status(header, chunk - back * step, marked));
            let count = out.last_mut().unwrap();
            // The range ends at the pushed chunk.
            let at = gradbox_protocol::HEADER_LEN;
            let mut body = *StatusBody::parse(&count.1[at..]).unwrap();
            body.count = (back as u16 + 1).into();
            count.1[at..].copy_from_slice(body.as_bytes());
        }
        out
    }

    fn status(&self, header: &Header, start: u32, marked: bool) -> (u8, Vec<u8>) {
        let rank = usize::from(header.rank);
        let chunks = (start..self.layout.chunks()).step_by(usize::from(self.layout.shards()));
        let mut body = StatusBody::new(0, self.credit);
        let mut waiting = false;
        for (i, chunk) in chunks.take(STATUS_CHUNKS).enumerate() {
            body.count = (i as u16 + 1).into();
            let slot = &self.slots[chunk as usize];
            if slot.completed & 1 == 1 {
                StatusBody::set(&mut body.done, i);
            }
            if slot.parts[rank].is_some() {
                StatusBody::set(&mut body.held, i);
                if !waiting {
                    waiting = true;
                    let missing = slot.parts.iter().enumerate().filter(|(_, p)| p.is_none());
                    let mask = missing.fold(0u32, |m, (r, _)| m | 1 << r);
                    body.missing = mask.into();
                    body.waiting_for = mask.trailing_zeros() as u8;
                }
            }
        }
        let mut echo = *header;
        echo.chunk = start.into();
        (header.rank, answer(&echo, Kind::Status, body.as_bytes(), marked))
    }
}

fn answer(to: &Header, kind: Kind, body: &[u8], marked: bool) -> Vec<u8> {
    let mut header = *to;
    header.kind = kind as u8;
    header.flags = if marked { Flags::CONGESTION } else { 0 };
    header.length = (body.len() as u16).into();
    [header.as_bytes(), body].concat()
}

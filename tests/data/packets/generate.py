#!/usr/bin/env python3
"""Writes the golden packets beside it: what a worker sends, and what the box must answer.

This is docs/protocol.md a second time, in another language and with no code shared with the
product. Run it after a change of the wire format, and read the difference.
"""

import struct
from pathlib import Path

PUSH, RESULT, QUERY, STATUS, ERROR, PING, PONG = range(1, 8)
WANT_STATUS, RESENT, CONGESTION = 1, 2, 4
UNKNOWN_JOB, WRONG_COOKIE, WRONG_RANK, WRONG_CHUNK, WRONG_LENGTH, WRONG_ROUND = range(1, 7)
NOBODY = 255
GROUP_RANK = 0xFF
GROUP_COOKIE = 0x99AABBCC
GROUP_PORT = 9102

JOB = 7
COOKIES = [0x11223344, 0x55667788]
CREDIT = 64
PORT_BASE = 9100
TENSOR_OF = [0, 0, 1]
# What each rank contributes to chunk 0, 1 and 2, and the sums: all exact in binary32.
VALUES = [
    [[float(i) for i in range(16)], [1.0, 2.0, 3.0, 4.0], [0.5, -1.0, 1e9]],
    [[float(100 * i) for i in range(16)], [0.5, 0.25, -3.0, 100.0], [0.25, 1.0, 1e9]],
]
SUMS = [[a + b for a, b in zip(*chunk)] for chunk in zip(*VALUES)]


def floats(values):
    return struct.pack(f"<{len(values)}f", *values)


def internet_sum(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


class Envelope:
    """How packets between the box and its two workers are wrapped."""

    def __init__(self, v6, vlan):
        self.v6, self.vlan = v6, vlan

    def address(self, host):
        return bytes.fromhex("fd00") + bytes(13) + bytes([host]) if self.v6 else bytes([10, 0, 0, host])

    def host(self, mac, ip):
        """MAC and IP address of a host."""
        return bytes([2, 0, 0, 0, *mac]), self.address(ip)

    def group(self):
        """MAC and IP address of the job's multicast group."""
        if self.v6:
            return bytes.fromhex("333380474207"), bytes.fromhex("ff15 0000 0000 0000 0000 0000 8047 4207")
        return bytes.fromhex("01005e7f4707"), bytes([239, 255, 71, JOB])

    def wrap(self, datagram, source, destination, port, hops, ecn, checksum):
        """`source` and `destination` are pairs of MAC and IP address, `port` is one of ports."""
        link = destination[0] + source[0]
        if self.vlan:
            link += bytes.fromhex("81006007")
        link += bytes.fromhex("86dd" if self.v6 else "0800")
        ends = source[1] + destination[1]
        size = 8 + len(datagram)
        if self.v6:
            # Traffic class 0x28 (AF11) and flow label 0xabcde show that they come back.
            traffic = 0x28 | ecn
            network = struct.pack(">IHBB", 6 << 28 | traffic << 20 | 0xABCDE, size, 17, hops) + ends
        else:
            network = struct.pack(">BBHHHBBH", 0x45, 0x28 | ecn, 20 + size, 0x1234, 0x4000, hops, 17, 0)
            network += ends
            check = internet_sum(network) ^ 0xFFFF
            network = network[:10] + struct.pack(">H", check) + network[12:]
        transport = struct.pack(">HHHH", *port, size, 0)
        if checksum:
            pseudo = ends + struct.pack(">HH", 17, size)
            check = internet_sum(pseudo + transport + datagram) ^ 0xFFFF or 0xFFFF
            transport = transport[:6] + struct.pack(">H", check)
        return link + network + transport + datagram

    def up(self, rank, shard, datagram, ecn=2, source_port=40000):
        """A packet of a worker. Rank 1 is a hop further away."""
        port = (source_port, PORT_BASE + shard)
        worker, box = self.host((1, rank), 16 + rank), self.host((0, 1), 1)
        return self.wrap(datagram, worker, box, port, 64 - rank, ecn, True)

    def down(self, rank, shard, datagram):
        """A packet of the box. It needs no UDP checksum over IPv4."""
        port = (PORT_BASE + shard, 40000)
        worker, box = self.host((1, rank), 16 + rank), self.host((0, 1), 1)
        return self.wrap(datagram, box, worker, port, 64, 2, self.v6)

    def down_to_group(self, shard, datagram):
        """A packet of the box for all ranks. It does not leave the link."""
        port = (PORT_BASE + shard, GROUP_PORT)
        return self.wrap(datagram, self.host((0, 1), 1), self.group(), port, 1, 2, self.v6)


def gradbox(kind, as_rank, stamp, round=0, chunk=0, tensor=0, flags=0, body=b"", job=JOB, cookie=None):
    cookie = COOKIES[as_rank] if cookie is None else cookie
    header = b"GB" + struct.pack("<BBHBB", 1, kind, job, as_rank, flags)
    header += struct.pack("<IIIHHQ", cookie, round, chunk, tensor, len(body), stamp)
    assert len(header) == 32
    return header + body


def status(count, waiting_for, missing, held, done):
    body = struct.pack("<HHB3xI4x", count, CREDIT, waiting_for, missing)
    body += bytes([held]) + bytes(63) + bytes([done]) + bytes(63)
    assert len(body) == 144
    return body


class File:
    def __init__(self, head):
        self.lines = [f"# {line}" for line in head]
        self.packets = []

    def packet(self, mark, text, data):
        self.lines += ["", f"{mark} {text}"]
        self.packets.append((mark, data))
        self.lines += [data[i : i + 16].hex(" ") for i in range(0, len(data), 16)]

    def write(self, name):
        Path(__file__).with_name(name).write_text("\n".join(self.lines) + "\n")
        self.seed(name.removesuffix(".hex"))

    def seed(self, name):
        """Seeds of the fuzz targets: a few packets for the parser, the conversation for step()."""
        corpus = Path(__file__).parents[3] / "fuzz" / "corpus"
        for i, (_, data) in enumerate(self.packets[:: len(self.packets) // 6]):
            (corpus / "parser").mkdir(parents=True, exist_ok=True)
            (corpus / "parser" / f"{name}-{i}").write_bytes(data)
        # fuzz/fuzz_targets/step.rs: 0 is a packet to queue 0, 4 to queue 1, 3 a step of the box.
        to_box = (data for mark, data in self.packets if mark == ">")
        steps = (bytes([4, len(data)]) + data + b"\3\0" for data in to_box)
        (corpus / "step").mkdir(parents=True, exist_ok=True)
        (corpus / "step" / name).write_bytes(b"".join(steps))


FORMAT = [
    "> a packet to the box, with the counters that it raises",
    "< an answer of the box, in the order in which they come",
]


class Conversation(File):
    """Questions of the workers and answers of the box."""

    def __init__(self, words, envelope):
        super().__init__([f"A job of two ranks over {words}. See README.md.", *FORMAT])
        self.envelope = envelope
        self.stamp = 0x0102030405060700

    def ask(self, counters, text, kind, rank, shard, ecn=2, source_port=40000, **fields):
        self.stamp += 1
        fields = {"as_rank": rank, "stamp": self.stamp, **fields}
        data = self.envelope.up(rank, shard, gradbox(kind, **fields), ecn, source_port)
        self.packet(">", f"[{counters}] {text}", data)
        return {k: v for k, v in fields.items() if k not in ("flags", "body")}

    def push(self, counters, text, rank, chunk, **fields):
        fields = {"tensor": TENSOR_OF[chunk], "body": floats(VALUES[rank][chunk]), **fields}
        shard = fields.pop("shard", chunk % 2)
        return self.ask(counters, text, PUSH, rank, shard, chunk=chunk, **fields)

    def answer(self, text, kind, rank, shard, question, **fields):
        data = gradbox(kind, **{**question, **fields})
        self.packet("<", text, self.envelope.down(rank, shard, data))

    def refusal(self, question, rank, shard, code, word):
        body = struct.pack("<HH", code, 0)
        self.answer(f"ERROR {code}: {word}", ERROR, rank, shard, question, body=body)

    def result(self, question, rank, chunk, text, **fields):
        body = floats(SUMS[chunk])
        self.answer(f"RESULT of {text} to rank {rank}", RESULT, rank, chunk % 2, question, body=body, **fields)

    def result_for_all(self, chunk, round, flags=0):
        fields = {"tensor": TENSOR_OF[chunk], "body": floats(SUMS[chunk]), "cookie": GROUP_COOKIE}
        data = gradbox(RESULT, GROUP_RANK, 0, round, chunk, flags=flags, **fields)
        text = f"RESULT of round {round} of chunk {chunk} to the group"
        self.packet("<", text, self.envelope.down_to_group(chunk % 2, data))


def exchange(name, words, envelope):
    file = Conversation(words, envelope)
    ask, push, answer, refusal, result = file.ask, file.push, file.answer, file.refusal, file.result

    q = ask("pong", "PING of rank 0", PING, 0, 1)
    answer("PONG", PONG, 0, 1, q)

    first = push("pushed", "PUSH of rank 0: round 0 of chunk 1", 0, 1)
    push("duplicate", "the same, sent again", 0, 1, flags=RESENT)
    q = push("duplicate status", "and again, with WANT_STATUS", 0, 1, flags=RESENT | WANT_STATUS)
    body = status(1, 1, 0b10, held=1, done=0)
    answer("STATUS: held, waiting for rank 1", STATUS, 0, 1, q, body=body)
    q = ask("status", "QUERY of rank 1 about chunk 1", QUERY, 1, 1, chunk=1)
    body = status(1, NOBODY, 0, held=0, done=0)
    answer("STATUS: nothing held, nothing done", STATUS, 1, 1, q, body=body)
    text = "PUSH of rank 1 for it, with WANT_STATUS, marked 'congestion experienced'"
    q = push("pushed completed status", text, 1, 1, flags=WANT_STATUS, ecn=3)
    result(first, 0, 1, "round 0 of chunk 1")
    result(q, 1, 1, "the same", flags=CONGESTION)
    body = status(1, NOBODY, 0, held=0, done=1)
    answer("STATUS: round 0 done", STATUS, 1, 1, q, flags=CONGESTION, body=body)
    q = push("resent", "PUSH of rank 0 again: its RESULT was lost", 0, 1, flags=RESENT)
    result(q, 0, 1, "round 0 of chunk 1")

    first = push("pushed", "PUSH of rank 0: round 1 of chunk 1", 0, 1, round=1)
    text = "PUSH of rank 1: round 2, which cannot have begun"
    q = push("drop_future_round error", text, 1, 1, round=2)
    refusal(q, 1, 1, WRONG_ROUND, "wrong round")
    q = push("pushed completed", "PUSH of rank 1: round 1 of chunk 1", 1, 1, round=1)
    result(first, 0, 1, "round 1 of chunk 1")
    result(q, 1, 1, "the same")
    q = push("drop_stale_round error", "PUSH of rank 0: round 0, long over", 0, 1)
    refusal(q, 0, 1, WRONG_ROUND, "wrong round")

    for chunk in (0, 2):
        first = push("pushed", f"PUSH of rank 1: round 0 of chunk {chunk}", 1, chunk)
        q = push("pushed completed", f"PUSH of rank 0: round 0 of chunk {chunk}", 0, chunk)
        result(q, 0, chunk, f"round 0 of chunk {chunk}")
        result(first, 1, chunk, "the same")
    q = ask("status", "QUERY of rank 0 about the chunks of shard 0", QUERY, 0, 0, chunk=0)
    body = status(2, NOBODY, 0, held=0, done=0b11)
    answer("STATUS: chunks 0 and 2 done", STATUS, 0, 0, q, body=body)
    text = "PUSH of rank 0: round 1 of chunk 0, to the port of the other shard"
    push("steered pushed", text, 0, 0, round=1, shard=1)
    q = push("pushed status", "PUSH of rank 0: round 1 of chunk 2, WANT_STATUS", 0, 2, round=1, flags=WANT_STATUS)
    body = status(2, 1, 0b10, held=0b11, done=0b11)
    answer("STATUS of chunks 0 and 2, which end at the pushed one", STATUS, 0, 0, {**q, "chunk": 0}, body=body)

    q = push("drop_unknown_job error", "PUSH to a job that is not there", 0, 1, round=2, job=8)
    refusal(q, 0, 1, UNKNOWN_JOB, "unknown job")
    q = push("drop_wrong_cookie error", "PUSH with another cookie", 0, 1, round=2, cookie=0x11223345)
    refusal(q, 0, 1, WRONG_COOKIE, "wrong cookie")
    text = "PUSH as rank 2 of a job of two"
    q = push("drop_wrong_rank error", text, 0, 1, round=2, as_rank=2, cookie=COOKIES[0])
    refusal(q, 0, 1, WRONG_RANK, "wrong rank")
    q = push("drop_wrong_chunk error", "PUSH of chunk 1 as one of tensor 1", 0, 1, round=2, tensor=1)
    refusal(q, 0, 1, WRONG_CHUNK, "wrong chunk")
    q = ask("drop_wrong_chunk error", "QUERY about chunk 3", QUERY, 0, 1, chunk=3)
    refusal(q, 0, 1, WRONG_CHUNK, "wrong chunk")
    text = "PUSH of 12 bytes where the chunk has 16"
    q = push("drop_wrong_length error", text, 0, 1, round=2, body=floats(VALUES[0][1])[:12])
    refusal(q, 0, 1, WRONG_LENGTH, "wrong length")
    text = "PUSH with rank 0's cookie from another port: no answer"
    push("drop_wrong_source", text, 0, 1, round=2, source_port=40001)
    for kind, word in ((RESULT, "RESULT"), (STATUS, "STATUS"), (ERROR, "ERROR"), (PONG, "PONG")):
        ask("drop_wrong_way", f"{word} to the box", kind, 0, 1)
    file.write(name)


def group(name, words, envelope):
    file = Conversation(f"{words}, with a multicast group", envelope)
    push, answer, result, result_for_all = file.push, file.answer, file.result, file.result_for_all

    push("pushed", "PUSH of rank 0: round 0 of chunk 1", 0, 1)
    text = "PUSH of rank 1 for it, with WANT_STATUS, marked 'congestion experienced'"
    q = push("pushed completed status", text, 1, 1, flags=WANT_STATUS, ecn=3)
    result_for_all(1, 0, CONGESTION)
    body = status(1, NOBODY, 0, held=0, done=1)
    answer("STATUS: round 0 done, to rank 1", STATUS, 1, 1, q, flags=CONGESTION, body=body)
    q = push("resent", "PUSH of rank 1 again: the RESULT did not come there", 1, 1, flags=RESENT)
    result(q, 1, 1, "round 0 of chunk 1")

    push("pushed", "PUSH of rank 1: round 1 of chunk 1", 1, 1, round=1)
    push("pushed completed", "PUSH of rank 0, which is marked", 0, 1, round=1, ecn=3)
    result_for_all(1, 1, CONGESTION)
    for chunk in (0, 2):
        push("pushed", f"PUSH of rank 1: round 0 of chunk {chunk}", 1, chunk)
        push("pushed completed", f"PUSH of rank 0: round 0 of chunk {chunk}", 0, chunk)
        result_for_all(chunk, 0)
    file.write(name)


def malformed():
    file = File(["Packets that are no Gradbox packets, and are not answered.", FORMAT[0]])
    v4, v6 = Envelope(False, False), Envelope(True, False)
    datagram = gradbox(PUSH, 0, 1, chunk=1, body=floats(VALUES[0][1]))
    good4, good6 = v4.up(0, 1, datagram), v6.up(0, 1, datagram)

    def other(text, data, at, *new):
        data = bytearray(data)
        data[at : at + len(new)] = bytes(new)
        file.packet(">", f"[drop_not_gradbox] {text}", bytes(data))

    def wrong(text, data):
        file.packet(">", f"[drop_malformed] {text}", v4.up(0, 1, data))
        file.packet(">", f"[drop_malformed] {text}, over IPv6", v6.up(0, 1, data))

    other("13 bytes", good4[:13], 0)
    other("ARP", good4, 12, 0x08, 0x06)
    tags = bytes.fromhex("81000007")
    other("two VLAN tags", good4[:12] + tags + tags + good4[12:], 0)
    other("IPv4 with options", good4, 14, 0x46)
    other("IPv4 that is cut off", good4[:-1], 0)
    other("IPv4, more fragments follow", good4, 20, 0x20, 0x00)
    other("IPv4, a later fragment", good4, 20, 0x00, 0x01)
    other("IPv4, TCP", good4, 23, 6)
    other("IPv4 whose UDP length is one more than its own", good4, 38, 0, 57)
    other("IPv4 that claims version 6", good4, 14, 0x65)
    other("IPv6 with a hop-by-hop header", good6, 20, 0)
    other("IPv6, a fragment", good6, 20, 44)
    other("IPv6 whose UDP length is one less than its own", good6, 58, 0, 55)
    other("IPv6 that is cut off", good6[:-1], 0)
    wrong("31 bytes of UDP payload", datagram[:31])
    wrong("no UDP payload", b"")
    wrong("another magic", b"BG" + datagram[2:])
    wrong("version 0", datagram[:2] + b"\0" + datagram[3:])
    wrong("version 2", datagram[:2] + b"\2" + datagram[3:])
    wrong("kind 0", datagram[:3] + b"\0" + datagram[4:])
    wrong("kind 8", datagram[:3] + b"\x08" + datagram[4:])
    wrong("a length that is one more than the body's", datagram[:22] + b"\x11" + datagram[23:])
    wrong("a body that is one less than its length", datagram[:-1])
    file.write("malformed.hex")


exchange("ipv4.hex", "IPv4 without a VLAN tag", Envelope(False, False))
exchange("ipv4-vlan.hex", "IPv4 with a VLAN tag", Envelope(False, True))
exchange("ipv6.hex", "IPv6 without a VLAN tag", Envelope(True, False))
exchange("ipv6-vlan.hex", "IPv6 with a VLAN tag", Envelope(True, True))
group("ipv4-multicast.hex", "IPv4 without a VLAN tag", Envelope(False, False))
group("ipv6-vlan-multicast.hex", "IPv6 with a VLAN tag", Envelope(True, True))
malformed()

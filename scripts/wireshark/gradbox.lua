-- Wireshark's view of Gradbox packets; the fields are those of docs/protocol.md.
--
--   tshark -r FILE -X lua_script:scripts/wireshark/gradbox.lua
--   wireshark -X lua_script:scripts/wireshark/gradbox.lua FILE
--
-- For good: copy it to the folder "Personal Lua Plugins" that Help > About Wireshark > Folders names.
-- Packets at the ports of the preferences are Gradbox where magic and version say so; those at other
-- ports are found by magic, version and length.

local HEADER_LEN = 32
local STATUS_LEN = 144
local STATUS_CHUNKS = 512
local ELEMENTS_SHOWN = 64

local KINDS = {
  [1] = "PUSH", [2] = "RESULT", [3] = "QUERY", [4] = "STATUS", [5] = "ERROR", [6] = "PING", [7] = "PONG",
}
local PUSH, RESULT, QUERY, STATUS, ERROR, PING, PONG = 1, 2, 3, 4, 5, 6, 7

local ERRORS = {
  [1] = "UNKNOWN_JOB", [2] = "WRONG_COOKIE", [3] = "WRONG_RANK", [4] = "WRONG_CHUNK",
  [5] = "WRONG_LENGTH", [6] = "WRONG_ROUND",
}

local ALL_RANKS, NOBODY = 255, 255

local gradbox = Proto("gradbox", "Gradbox")

local f = {
  magic = ProtoField.string("gradbox.magic", "Magic"),
  version = ProtoField.uint8("gradbox.version", "Version"),
  kind = ProtoField.uint8("gradbox.kind", "Kind", base.DEC, KINDS),
  job = ProtoField.uint16("gradbox.job", "Job"),
  rank = ProtoField.uint8("gradbox.rank", "Rank"),
  flags = ProtoField.uint8("gradbox.flags", "Flags", base.HEX),
  want_status = ProtoField.bool("gradbox.flags.want_status", "WANT_STATUS", 8, nil, 0x01),
  resent = ProtoField.bool("gradbox.flags.resent", "RESENT", 8, nil, 0x02),
  congestion = ProtoField.bool("gradbox.flags.congestion", "CONGESTION", 8, nil, 0x04),
  cookie = ProtoField.uint32("gradbox.cookie", "Cookie", base.HEX),
  round = ProtoField.uint32("gradbox.round", "Round"),
  chunk = ProtoField.uint32("gradbox.chunk", "Chunk"),
  tensor = ProtoField.uint16("gradbox.tensor", "Tensor"),
  length = ProtoField.uint16("gradbox.length", "Length"),
  stamp = ProtoField.uint64("gradbox.stamp", "Stamp", base.HEX),
  body = ProtoField.bytes("gradbox.body", "Body"),
  f32 = ProtoField.float("gradbox.element.f32", "Element (f32)"),
  i32 = ProtoField.int32("gradbox.element.i32", "Element (i32)"),
  f16 = ProtoField.float("gradbox.element.f16", "Element (f16)"),
  bf16 = ProtoField.float("gradbox.element.bf16", "Element (bf16)"),
  error = ProtoField.uint16("gradbox.error.code", "Code", base.DEC, ERRORS),
  count = ProtoField.uint16("gradbox.status.count", "Chunks"),
  credit = ProtoField.uint16("gradbox.status.credit", "Credit"),
  waiting_for = ProtoField.uint8("gradbox.status.waiting_for", "Waiting for rank"),
  missing = ProtoField.uint32("gradbox.status.missing", "Missing ranks", base.HEX),
  held = ProtoField.bytes("gradbox.status.held", "Held"),
  done = ProtoField.bytes("gradbox.status.done", "Done (parity)"),
  held_count = ProtoField.uint16("gradbox.status.held_count", "Chunks held"),
  answer_in = ProtoField.framenum("gradbox.answer_in", "Answer in", base.NONE, frametype.RESPONSE),
  answer_to = ProtoField.framenum("gradbox.answer_to", "Answer to", base.NONE, frametype.REQUEST),
  time = ProtoField.relative_time("gradbox.time", "Time since the question"),
}
gradbox.fields = f

local refused = ProtoExpert.new("gradbox.refused", "The box refused the packet", expert.group.RESPONSE_CODE, expert.severity.WARN)
local cut = ProtoExpert.new("gradbox.cut", "The capture has not all of the body", expert.group.UNDECODED, expert.severity.NOTE)
gradbox.experts = { refused, cut }

-- The type of the elements is told at the join, not in the packets.
local DTYPES = { { 1, "not shown", 0 }, { 2, "f32", 1 }, { 3, "f16", 2 }, { 4, "bf16", 3 }, { 5, "i32", 4 } }
gradbox.prefs.ports = Pref.range("UDP ports", "9100-9163", "port_base of the box and one port for each shard", 65535)
gradbox.prefs.dtype = Pref.enum("Type of the elements", 0, "How the bodies of PUSH and RESULT are shown", DTYPES, false)

-- Questions and answers by frame number, and the last question of each key.
local questions, answer_to, answer_in, asked_at = {}, {}, {}, {}

function gradbox.init()
  questions, answer_to, answer_in, asked_at = {}, {}, {}, {}
end

local function is_gradbox(tvb)
  return tvb:captured_len() >= HEADER_LEN and tvb(0, 2):string() == "GB" and tvb(2, 1):uint() == 1
end

local function half(bits)
  local sign = bits >= 0x8000 and -1 or 1
  local exponent, fraction = math.floor(bits / 1024) % 32, bits % 1024
  if exponent == 31 then
    return fraction == 0 and sign / 0 or 0 / 0
  elseif exponent == 0 then
    return sign * fraction * 2 ^ -24
  end
  return sign * (1 + fraction / 1024) * 2 ^ (exponent - 15)
end

local function bfloat(bits)
  local sign = bits >= 0x8000 and -1 or 1
  local exponent, fraction = math.floor(bits / 128) % 256, bits % 128
  if exponent == 255 then
    return fraction == 0 and sign / 0 or 0 / 0
  elseif exponent == 0 then
    return sign * fraction * 2 ^ -133
  end
  return sign * (1 + fraction / 128) * 2 ^ (exponent - 127)
end

local function show_elements(tree, body)
  local dtype = gradbox.prefs.dtype
  local size = (dtype == 2 or dtype == 3) and 2 or 4
  local count = math.min(math.floor(body:len() / size), ELEMENTS_SHOWN)
  for i = 0, count - 1 do
    local element = body(i * size, size)
    if dtype == 1 then
      tree:add_le(f.f32, element)
    elseif dtype == 2 then
      tree:add(f.f16, element, half(element:le_uint()))
    elseif dtype == 3 then
      tree:add(f.bf16, element, bfloat(element:le_uint()))
    elseif dtype == 4 then
      tree:add_le(f.i32, element)
    end
  end
end

-- Bits that are set among the first `count` of a bitmap.
local function ones(bitmap, count)
  local set = 0
  for i = 0, math.min(count, STATUS_CHUNKS) - 1 do
    if math.floor(bitmap(math.floor(i / 8), 1):uint() / 2 ^ (i % 8)) % 2 == 1 then
      set = set + 1
    end
  end
  return set
end

-- Ranks as words: "0, 3".
local function ranks(bits)
  local list = {}
  for rank = 0, 31 do
    if math.floor(bits / 2 ^ rank) % 2 == 1 then
      list[#list + 1] = tostring(rank)
    end
  end
  return #list > 0 and table.concat(list, ", ") or "none"
end

-- Adds the body of a STATUS, and returns words for the list of packets.
local function show_status(tree, body)
  local count, missing = body(0, 2):le_uint(), body(8, 4):le_uint()
  tree:add_le(f.count, body(0, 2))
  tree:add_le(f.credit, body(2, 2))
  local waiting = tree:add(f.waiting_for, body(4, 1))
  if body(4, 1):uint() == NOBODY then
    waiting:append_text(" (nobody)")
  end
  tree:add_le(f.missing, body(8, 4)):append_text(" (" .. ranks(missing) .. ")")
  tree:add(f.held, body(16, 64))
  tree:add(f.done, body(80, 64))
  local held = ones(body(16, 64), count)
  tree:add(f.held_count, held):set_generated()
  local words = string.format(" held %d of %d, credit %d", held, count, body(2, 2):le_uint())
  return missing == 0 and words or words .. ", missing ranks " .. ranks(missing)
end

-- Names of what a packet asks for, or answers: a chunk's result, the result for all ranks (which is made
-- of rank 0's PUSH), a status, a sign of life.
local function keys(kind, header)
  local place = table.concat({ header.job, header.round, header.chunk }, " ")
  local who = table.concat({ header.job, header.rank, header.cookie, header.stamp }, " ")
  local result = "result " .. who .. " " .. place
  local all = "all " .. place
  local status = "status " .. who
  if kind == PUSH then
    return { result, header.rank == 0 and all or nil, header.want_status and status or nil }
  elseif kind == RESULT then
    return { header.rank == ALL_RANKS and all or result }
  elseif kind == QUERY or kind == STATUS then
    return { status }
  elseif kind == ERROR then
    return { result, status }
  end
  return { "ping " .. who }
end

local function track(pinfo, tree, kind, header)
  local here, now = pinfo.number, pinfo.abs_ts
  if not pinfo.visited then
    local asks = kind == PUSH or kind == QUERY or kind == PING
    if asks then
      asked_at[here] = now
    end
    for _, key in pairs(keys(kind, header)) do
      if asks then
        questions[key] = here
      elseif questions[key] and not answer_to[here] then
        answer_to[here] = questions[key]
        answer_in[questions[key]] = answer_in[questions[key]] or here
      end
    end
  end
  if answer_in[here] then
    tree:add(f.answer_in, answer_in[here]):set_generated()
  end
  local question = answer_to[here]
  if question then
    tree:add(f.answer_to, question):set_generated()
    local past = now - asked_at[question]
    local seconds = math.floor(past)
    tree:add(f.time, NSTime.new(seconds, math.floor((past - seconds) * 1e9 + 0.5))):set_generated()
  end
end

local function dissect(tvb, pinfo, root)
  if not is_gradbox(tvb) then
    return 0
  end
  pinfo.cols.protocol = "GRADBOX"
  local tree = root:add(gradbox, tvb())
  local kind, rank, flags = tvb(3, 1):uint(), tvb(6, 1):uint(), tvb(7, 1):uint()
  local header = {
    job = tvb(4, 2):le_uint(),
    rank = rank,
    cookie = tvb(8, 4):le_uint(),
    round = tvb(12, 4):le_uint(),
    chunk = tvb(16, 4):le_uint(),
    stamp = tostring(tvb(24, 8):le_uint64()),
    want_status = flags % 2 == 1,
  }
  tree:add(f.magic, tvb(0, 2))
  tree:add(f.version, tvb(2, 1))
  tree:add(f.kind, tvb(3, 1))
  tree:add_le(f.job, tvb(4, 2))
  local rank_item = tree:add(f.rank, tvb(6, 1))
  if rank == ALL_RANKS then
    rank_item:append_text(" (all ranks)")
  end
  local flag_tree = tree:add(f.flags, tvb(7, 1))
  flag_tree:add(f.want_status, tvb(7, 1))
  flag_tree:add(f.resent, tvb(7, 1))
  flag_tree:add(f.congestion, tvb(7, 1))
  tree:add_le(f.cookie, tvb(8, 4))
  tree:add_le(f.round, tvb(12, 4))
  tree:add_le(f.chunk, tvb(16, 4))
  tree:add_le(f.tensor, tvb(20, 2))
  tree:add_le(f.length, tvb(22, 2))
  tree:add_le(f.stamp, tvb(24, 8))

  local name = KINDS[kind] or string.format("kind %d", kind)
  local info = name
  if kind ~= PING and kind ~= PONG then
    local who = rank == ALL_RANKS and "all ranks" or "rank " .. rank
    info = string.format("%s job %d %s tensor %d chunk %d round %d", name, header.job, who, tvb(20, 2):le_uint(), header.chunk, header.round)
  end
  for i, word in ipairs({ "WANT_STATUS", "RESENT", "CONGESTION" }) do
    if math.floor(flags / 2 ^ (i - 1)) % 2 == 1 then
      info = info .. " " .. word
    end
  end

  local length = math.min(tvb(22, 2):le_uint(), tvb:captured_len() - HEADER_LEN)
  if length > 0 then
    local body = tvb(HEADER_LEN, length)
    local item = tree:add(f.body, body)
    if length < tvb(22, 2):le_uint() then
      item:add_proto_expert_info(cut)
    end
    if (kind == PUSH or kind == RESULT) and gradbox.prefs.dtype ~= 0 then
      show_elements(item, body)
    elseif kind == STATUS and length == STATUS_LEN then
      info = info .. show_status(tree, body)
    elseif kind == ERROR and length >= 2 then
      local code = body(0, 2):le_uint()
      tree:add_le(f.error, body(0, 2)):add_proto_expert_info(refused)
      info = info .. " " .. (ERRORS[code] or string.format("code %d", code))
    end
  end
  pinfo.cols.info = info
  if KINDS[kind] then
    track(pinfo, tree, kind, header)
  end
  return tvb:captured_len()
end

gradbox.dissector = dissect

-- At other ports the length has to be right, too.
local function heuristic(tvb, pinfo, root)
  if not is_gradbox(tvb) or tvb(22, 2):le_uint() ~= tvb:reported_len() - HEADER_LEN then
    return false
  end
  dissect(tvb, pinfo, root)
  return true
end

local ports = DissectorTable.get("udp.port")
local registered = gradbox.prefs.ports
ports:add(registered, gradbox)

function gradbox.prefs_changed()
  if tostring(registered) ~= tostring(gradbox.prefs.ports) then
    ports:remove(registered, gradbox)
    registered = gradbox.prefs.ports
    ports:add(registered, gradbox)
  end
end

gradbox:register_heuristic("udp", heuristic)

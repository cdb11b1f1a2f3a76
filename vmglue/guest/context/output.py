# SPDX-License-Identifier: Apache-2.0
"""What one run sends: its limits, its text cut between characters, its events numbered."""
import codecs
import json
import time

STREAM_MAX = 4 << 20      # of stdout, and of stderr: the beginning is kept
BUNDLES_MAX = 24 << 20    # of all displays and values
BUNDLE_COUNT_MAX = 1000


class Run:
    """A request to run code, from its arrival to its answer. `client` may have gone: then nobody hears it."""

    def __init__(self, client, name, op, code, timeout_ms):
        self.client, self.name, self.op, self.code = client, name, op, code
        self.timeout_secs = timeout_ms / 1000 if timeout_ms else None
        self.sequence = 0
        self.started = None
        self.interrupts = 0
        self.kill_at = None          # when it is ended the hard way
        self.interrupt_again_at = None
        self.timed_out = self.truncated = self.interrupted = False
        self.oom_kills = 0
        self.lost_before = None      # why this run began with nothing
        self.execution_count = None
        self.clear_budgets()
        self.decoders = {name: codecs.getincrementaldecoder("utf-8")("replace") for name in ("stdout", "stderr")}

    def clear_budgets(self):
        self.left = {"stdout": STREAM_MAX, "stderr": STREAM_MAX}
        self.bundles_left, self.count_left = BUNDLES_MAX, BUNDLE_COUNT_MAX
        self.sizes = {}              # display id: bytes that it holds of the budget

    def begin(self):
        self.started = time.monotonic()

    def send(self, event, payload=None, **fields):
        self.sequence += 1
        head = json.dumps({"event": event, "run": self.name, "seq": self.sequence} | fields)
        if payload is None:
            self.client.send(head.encode("ascii") + b"\n")
        else:
            self.client.send(head[:-1].encode("ascii") + b', "data": ' + payload + b"}\n")

    def text(self, stream, data, last=False):
        """Bytes of a stream. A character that is cut in two waits for its rest; at the limit the rest is not waited for."""
        kept = data[:self.left[stream]]
        self.left[stream] -= len(kept)
        if len(kept) < len(data):
            self.truncated = True
        if self.left[stream] == 0 and last:
            return
        if self.client.full and self.interrupts:
            self.truncated |= bool(kept)    # it is being ended, and must not wait for a reader that sleeps
            return
        text = self.decoders[stream].decode(kept, last)
        if text:
            self.send(stream, text=text)

    def bundle(self, event, payload):
        """A value or display, as far as the budgets go. An update takes the place of what it updates."""
        display_id = event.get("display_id")
        display_id = display_id if isinstance(display_id, str) else None
        held = self.sizes.get(display_id, 0)
        update = event["event"] == "update_display"
        if update and display_id in self.sizes:
            self.bundles_left += held
            self.count_left += 1
        if len(payload) > self.bundles_left or self.count_left < 1 or (self.client.full and self.interrupts):
            self.truncated = True
            if update and display_id in self.sizes:
                self.bundles_left -= held
                self.count_left -= 1
            return
        self.bundles_left -= len(payload)
        self.count_left -= 1
        fields = {}
        if display_id is not None:
            self.sizes[display_id] = len(payload)
            fields["display_id"] = display_id
        if event.get("truncated") is True:
            fields["truncated"] = self.truncated = True
        self.send(event["event"], payload, **fields)

    def done(self, error=None, **fields):
        for stream in ("stdout", "stderr"):
            self.text(stream, b"", last=True)
        duration = 0 if self.started is None else time.monotonic() - self.started
        if error is not None:
            self.send("error", **error)
        self.send("done", execution_count=self.execution_count, duration_ms=round(duration * 1000), timed_out=self.timed_out,
                  interrupted=self.interrupted, truncated=self.truncated, **fields)


class Client:
    """A connection: lines in, events out. More than FULL bytes that wait for it hold back what makes more of them."""
    FULL = 1 << 18
    LINE_MAX = 9 << 20

    def __init__(self, connection):
        connection.setblocking(False)
        self.socket = connection
        self.incoming = bytearray()
        self.outgoing = bytearray()
        self.gone = False

    @property
    def full(self):
        return len(self.outgoing) > self.FULL and not self.gone

    def send(self, data):
        if not self.gone:
            self.outgoing += data

    def answer(self, **fields):
        self.send(json.dumps(fields).encode("ascii") + b"\n")

    def push(self):
        try:
            while self.outgoing:
                sent = self.socket.send(bytes(self.outgoing[:1 << 18]))
                del self.outgoing[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self.gone = True

    def lines(self):
        """Whole lines that came."""
        try:
            piece = self.socket.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            piece = b""
        if not piece or len(self.incoming) + len(piece) > self.LINE_MAX:
            self.gone = True
            return
        self.incoming += piece
        while (end := self.incoming.find(b"\n")) >= 0:
            line = bytes(self.incoming[:end])
            del self.incoming[:end + 1]
            yield line

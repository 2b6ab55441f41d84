"""Whatever comes and however long it grows: everybody ends, the oldest runs on, little is moved."""

from dataclasses import dataclass, field

from hypothesis import example, given, settings
from hypothesis import strategies as st

from shared.worker.device_rooms import STEP_TOKENS, DeviceRooms

CAPACITY = 2_000


@dataclass
class Request:
    handle: str
    arrives_at: int
    prompt_tokens: int
    answer_tokens: int
    limit_tokens: int
    move_ticks: int
    position: int = 0
    settles_at: int = -1
    came_in_with: int = 0
    ended_at: int = -1


@dataclass
class Instance:
    """Does what the decode batch does with the rooms, a token a tick."""

    requests: list[Request]
    rooms: DeviceRooms = field(default_factory=lambda: DeviceRooms(CAPACITY))
    num_growths: int = 0
    num_put_out: int = 0
    now: int = 0

    def run(self) -> None:
        coming = sorted(self.requests, key=lambda one: one.arrives_at)
        self.known = {one.handle: one for one in coming}
        running: dict[str, Request] = {}
        while coming or running:
            while coming and coming[0].arrives_at <= self.now:
                one = coming.pop(0)
                one.position = one.prompt_tokens
                running[one.handle] = one
                self.rooms.arrive(one.handle, one.position + 1, one.limit_tokens)
            for handle in self.rooms.let_in():
                one = running[handle]
                one.settles_at, one.came_in_with = self.now + one.move_ticks, one.position
            for one in running.values():
                if one.settles_at == self.now and self.rooms.room(one.handle):
                    self.rooms.settle(one.handle)
            self._check(running)
            self._step(running)
            self.now += 1
            assert self.now < 200_000, "nobody gets on"

    def _step(self, running: dict[str, Request]) -> None:
        for handle in self.rooms.in_line(running):
            one = running[handle]
            if not self.rooms.room(handle) or one.settles_at > self.now:
                continue
            before = self.rooms.room(handle)
            if not self._make_room(one):
                continue
            self.num_growths += self.rooms.room(handle) > before
            one.position += 1
            if one.position == one.prompt_tokens + one.answer_tokens:
                one.ended_at = self.now
                self.rooms.end(handle)
                del running[handle]

    def _make_room(self, one: Request) -> bool:
        while not self.rooms.grow(one.handle, one.position + 1):
            last = self.rooms.last_inside()
            if last is None:
                return False
            victim = self.known[last]
            assert last != self.rooms.in_line(self.known)[0], "the oldest was put out"
            num_computed = victim.position - victim.came_in_with
            assert num_computed >= STEP_TOKENS - victim.move_ticks, "moved in for nothing"
            self.rooms.put_out(last, victim.position + 1)
            self.num_put_out += 1
            if last == one.handle:
                return False
        return True

    def _check(self, running: dict[str, Request]) -> None:
        rooms = [self.rooms.room(handle) for handle in self.rooms.in_line(running)]
        assert sum(rooms) == self.rooms.used_tokens <= CAPACITY
        num_inside = sum(room > 0 for room in rooms)
        assert all(rooms[:num_inside]), "somebody is inside before an older one"
        assert not rooms or rooms[0], "the oldest is outside"


REQUESTS = st.lists(
    st.tuples(
        st.integers(0, 2_000),
        st.integers(1, 900),
        st.integers(1, 1_000),
        st.floats(0.0, 1.0),
        st.integers(0, 3),
    ),
    min_size=1,
    max_size=12,
)


SLOW_MOVES = [
    (341, 1, 1, 0.76, 2), (0, 160, 930, 0.0, 2), (0, 434, 792, 1.0, 0), (341, 1, 99, 0.0, 3),
    (89, 1, 858, 0.0, 1), (341, 1, 1, 0.0, 3), (0, 1, 1, 1.0, 1), (341, 1, 51, 1.0, 1),
    (0, 1, 1, 0.0, 3), (341, 20, 1, 0.0, 3), (452, 531, 1, 0.0, 0),
]  # fmt: skip
"""One is put out after 62 tokens: others went on while it moved in."""


@given(raw=REQUESTS)
@example(raw=SLOW_MOVES)
@settings(max_examples=100, deadline=None)
def test_everybody_ends_and_is_moved_no_more_often_than_others_grow(
    raw: list[tuple[int, int, int, float, int]],
) -> None:
    requests = [
        Request(
            f"r{number}",
            arrives,
            prompt,
            answer,
            prompt + answer + int(spare * (CAPACITY - prompt - answer)),
            moves,
        )
        for number, (arrives, prompt, answer, spare, moves) in enumerate(raw)
    ]
    instance = Instance(requests)
    instance.run()
    assert all(one.ended_at >= 0 for one in requests)
    assert instance.rooms.used_tokens == 0
    tries = instance.num_growths + len(requests)
    assert instance.num_put_out <= tries * len(requests)
    total = sum(one.answer_tokens for one in requests)
    assert instance.num_put_out <= total // STEP_TOKENS
    # Never idle for long: with one at a time it would take the sum of all and the moves.
    moves = (instance.num_put_out + len(requests)) * 4
    last_arrival = max(one.arrives_at for one in requests)
    assert instance.now <= last_arrival + total + moves


@given(raw=REQUESTS)
@settings(max_examples=50, deadline=None)
def test_who_fits_with_all_it_may_ever_need_is_never_put_out(
    raw: list[tuple[int, int, int, float, int]],
) -> None:
    requests, room = [], CAPACITY
    for number, (arrives, prompt, answer, _, moves) in enumerate(raw):
        if prompt + answer <= room:
            room -= prompt + answer
            one = Request(f"r{number}", arrives, prompt, answer, prompt + answer, moves)
            requests.append(one)
    instance = Instance(requests)
    instance.run()
    assert instance.num_put_out == 0
    for one in requests:
        assert one.ended_at == one.arrives_at + one.move_ticks + one.answer_tokens - 1

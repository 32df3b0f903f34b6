// The slow half of slab.h: adding and removing runs, and the scan for a free slot.
// Threads: as slab.h.
#include "runtime/memory/blocks/slab.h"

#include <algorithm>
#include <bit>

namespace weir::memory {

std::size_t slabs::run_bytes(int c, std::size_t have) noexcept {
  std::size_t const size = size_classes::bytes(c);
  // With many slabs, runs are long, so that each slot costs little host memory.
  if (have >= many_slabs) {
    std::size_t run =
        std::min(most_run_bytes, std::size_t{2} << 20 << std::min<std::size_t>((have - many_slabs) / 40, 4));
    while (run > usual_run_bytes && run / size > most_slots)
      run /= 2;
    if (run > usual_run_bytes)
      return run;
  }
  // With few slabs, runs are small, so that a little-used class holds little. A run wastes what lies behind
  // its last slot. The shortest that wastes a small share of itself is taken, else the one that wastes the
  // smallest share.
  std::size_t const least = have < 8 ? 64 << 10 : have < 32 ? 128 << 10 : usual_run_bytes;
  std::size_t const small_share = have < 2 ? 8 : have < 8 ? 32 : 64;  // one part of so many
  std::size_t best = least, best_waste = ~std::size_t{0};
  for (std::size_t run = least; run <= usual_run_bytes; run += granule) {
    std::size_t const waste = run % size;
    if (waste * small_share <= run)
      return run;
    if (waste * best < best_waste * run || best_waste == ~std::size_t{0})
      best = run, best_waste = waste;
  }
  return best;
}

void slab::say_more(std::uint32_t i) noexcept {
  if (!users_storage)
    return;
  // Another thread may set the slot's marks meanwhile.
  user_word& word = users_storage[i].front();
  for (std::uintptr_t mark = word.load(); !word.compare_exchange(mark, mark | more);) {}
}

void slab::record_use(std::uint32_t i, clock::stream_clock& user) {
  user.note_mark();
  if (!users_storage) {
    auto room = std::make_unique<first_users[]>(slots);
    // Slots that have a note already get `more`, which tells of it.
    for (auto const& [noted, n] : notes)
      room[noted].front().store(more);
    users_storage = std::move(room);
    users.store(users_storage.get(), base::memory_order_release);
  }
  // a borrowed stream's mark holds its clock, and needs a note for that
  if (user.alive() != clock::life::borrowed && add_first_user(users_storage.get(), i, user))
    return;
  auto& others = noted_at(i).users;
  if (!others.has(user))
    others.add(user);
}

void slab::forget_user(std::uint32_t i, clock::stream_clock& user) noexcept {
  // The mark goes, and `more` stays as it is.
  if (has_note(i) && users_storage) {
    for (user_word& word : users_storage[i]) {
      for (std::uintptr_t mark = word.load(); clock_of(mark) == &user && !word.compare_exchange(mark, mark & more);) {}
    }
  }
  if (note* const n = note_of(i))
    n->users.forget(user);
}

void slabs::list(slab& s) noexcept {
  slab*& head = open_[static_cast<std::size_t>(s.size_class)];
  s.before = nullptr;
  s.after = head;
  if (head)
    head->before = &s;
  head = &s;
  s.listed = true;
}

void slabs::unlist(slab& s) noexcept {
  (s.before ? s.before->after : open_[static_cast<std::size_t>(s.size_class)]) = s.after;
  if (s.after)
    s.after->before = s.before;
  s.before = s.after = nullptr;
  s.listed = false;
}

std::uint32_t slabs::take_bit(slab& s) noexcept {
  WEIR_RULE(s.listed && s.free > 0, "it is listed without a free slot, or has one and is not listed");
  if (s.empty())  // it was, until now
    --empties_[static_cast<std::size_t>(s.size_class)];
  while (!s.free_bits[s.hint])
    ++s.hint;
  std::uint64_t& word = s.free_bits[s.hint];
  auto const i = s.hint * 64 + static_cast<std::uint32_t>(std::countr_zero(word));
  word &= word - 1;
  WEIR_RULE(s.at(i) == slot::free && !s.has_gone(i), "the free bit and the state of a slot differ");
  WEIR_RULE(free_bytes_ >= s.size, "the counted bytes of runs, or of their free slots, are wrong");
  free_bytes_ -= s.size;
  if (--s.free == 0)
    unlist(s);
  return i;
}

slabs::taken slabs::take(int c, std::size_t requested) {
  slab* const s = open_[static_cast<std::size_t>(c)];
  if (!s)
    return {};
  if (slab::fits_byte(s->size, requested)) {
    std::uint32_t const i = take_bit(*s);
    s->set_live(i, requested);
    return {s, i};
  }
  // Else a note has the unused bytes. It is allocated before anything changes, under any index.
  std::map<std::uint32_t, slab::note> spare;
  spare[0].unused = s->size - static_cast<std::uint32_t>(requested);
  std::uint32_t const i = take_bit(*s);
  auto node = spare.extract(spare.begin());
  node.key() = i;
  s->notes.insert(std::move(node));
  s->say_more(i);
  s->byte(i).set(static_cast<std::uint8_t>(slot::live) | slot_bits::noted);
  return {s, i};
}

std::size_t slabs::take_for_cache(int c, std::span<cached_slot> out) noexcept {
  std::size_t n = 0;
  // The head of the list: take_bit() unlists a slab that has no free slot left.
  slab* const& first = open_[static_cast<std::size_t>(c)];
  while (first && n < out.size()) {
    slab* const s = first;
    while (n < out.size() && s->free) {
      std::uint32_t const i = take_bit(*s);
      s->set(i, slot::cached);
      out[n++] = {s->start(i), &s->byte(i)};
    }
  }
  return n;
}

bool slabs::give(slab& s, std::uint32_t i, std::uint64_t freed) noexcept {
  if (s.at(i) == slot::pending) {
    WEIR_RULE(s.pending > 0, "slots != free + live + pending + cached + gone");
    --s.pending;
  }
  s.forget(i);
  return set_free(s, i, freed);
}

bool slabs::set_free(slab& s, std::uint32_t i, std::uint64_t freed) noexcept {
  WEIR_RULE(s.at(i) != slot::free && !(s.free_bits[i / 64] >> (i % 64) & 1),
            "the free bit and the state of a slot differ");
  WEIR_RULE(!s.has_note(i), "a freed slot has a note or a mark");
  s.set(i, slot::free);
  s.freed = std::max(s.freed, freed);
  newest_freed_ = std::max(newest_freed_, freed);
  s.free_bits[i / 64] |= std::uint64_t{1} << (i % 64);
  s.hint = std::min(s.hint, i / 64);
  ++s.free;
  WEIR_RULE(s.free + s.pending + s.gone <= s.slots, "slots != free + live + pending + cached + gone");
  free_bytes_ += s.size, ++freed_;
  if (!s.listed)
    list(s);
  if (!s.empty())
    return false;
  std::size_t const empties = ++empties_[static_cast<std::size_t>(s.size_class)];
  // Each class keeps one empty whole slab, so that a lone pair of calls does not cut and return a run.
  return empties > 1 || s.gone;
}

void slabs::hold(slab& s, std::uint32_t i) noexcept {
  s.forget(i);
  WEIR_RULE(s.at(i) == slot::live || s.at(i) == slot::cached, "a slot that is not in use becomes pending");
  s.set(i, slot::pending);
  ++s.pending;
}

slab& slabs::add(heap_block& run, int c, stream_heap* owner, std::size_t bucket) {
  WEIR_RULE(run.is == state::reserved, "a run is made of a block that is not reserved");
  // First what may throw.
  if (spare_.empty()) {
    all_.push_back(std::make_unique<slab>());
    spare_.reserve(all_.size());
    spare_.push_back(all_.back().get());
  }
  slab& s = *spare_.back();
  std::size_t const size = size_classes::bytes(c), slots = run.bytes / size;
  int const shift = size > slab::small ? 2 : 0;
  auto known =
      std::make_unique<slab::states[]>((((slots + 1) << shift) + sizeof(slab::states) - 1) / sizeof(slab::states));
  auto bits = std::make_unique<std::uint64_t[]>((slots + 63) / 64);
  // Nothing below throws.
  spare_.pop_back();
  for (std::size_t i = 0; i < slots; ++i)
    bits[i / 64] |= std::uint64_t{1} << (i % 64);
  s.known = std::move(known), s.free_bits = std::move(bits);
  s.first = s.known[0].bytes.data(), s.byte_shift = static_cast<std::uint8_t>(shift);
  // One more than there are slots, for addresses behind the last one.
  for (std::size_t i = 0; i <= slots; ++i) {
    if (shift)
      (void)new (s.first + (i << shift)) large_slot;
    else
      (void)new (s.first + i) slot_byte;
  }
  s.owner = owner, s.bucket = static_cast<std::uint16_t>(bucket);
  s.reciprocal = ~std::uint64_t{0} / size + 1;
  s.run = &run, s.base = run.at;
  s.size = static_cast<std::uint32_t>(size);
  s.size_class = static_cast<std::uint16_t>(c);
  s.lines = static_cast<std::uint16_t>(c * slab::lines_a_size);
  s.slots = s.free = static_cast<std::uint32_t>(slots);
  s.bytes = static_cast<std::uint32_t>(run.bytes);
  s.pending = s.gone = s.hint = 0;
  s.freed = run.freed;
  in_runs_ += run.bytes, free_bytes_ += slots * size, words_ += words_of(s);
  run.is = state::slab;
  run.in_slab = &s;
  run.in->table.enter(run);
  ++counts_[static_cast<std::size_t>(c)];
  ++empties_[static_cast<std::size_t>(c)];
  list(s);
  return s;
}

heap_block* slabs::forget(slab& s) noexcept {
  WEIR_RULE(s.empty(), "a run goes whose slots are in use");
  unlist(s);
  free_bytes_ -= std::size_t{s.free} * s.size, words_ -= words_of(s);
  --counts_[static_cast<std::size_t>(s.size_class)];
  --empties_[static_cast<std::size_t>(s.size_class)];
  s.users.store(nullptr);
  s.known.reset(), s.free_bits.reset(), s.users_storage.reset();
  s.slots = s.free = s.gone = 0;
  return std::exchange(s.run, nullptr);
}

slabs::stretch slabs::next_idle(slab const& s, std::uint32_t from) noexcept {
  if (from >= s.slots)
    return {};
  // The first free slot.
  std::uint32_t const words = (s.slots + 63) / 64;
  std::uint32_t w = from / 64;
  std::uint64_t word = s.free_bits[w] & ~std::uint64_t{0} << from % 64;
  while (!word && ++w < words)
    word = s.free_bits[w];
  if (!word)
    return {};
  std::uint32_t i = w * 64 + static_cast<std::uint32_t>(std::countr_zero(word)), end = i;
  // With it those before it that have gone, and those behind it that are free or have gone.
  while (i > from && s.has_gone(i - 1))
    --i;
  while (end < s.slots) {
    // Up to the end of the word: the shift fills it with zeros.
    auto const free = static_cast<std::uint32_t>(std::countr_one(s.free_bits[end / 64] >> end % 64));
    if (free)
      end += free;
    else if (s.has_gone(end))
      ++end;
    else
      break;
  }
  return {i, end - i};
}

void slabs::drop(slab& s, stretch idle, address from, address to) noexcept {
  in_runs_ -= to - from;
  for (std::uint32_t i = std::max(idle.first, s.index(from)); i < idle.first + idle.slots && s.start(i) < to; ++i) {
    if (s.has_gone(i))
      continue;
    WEIR_RULE(s.at(i) == slot::free, "a slot in use has gone");
    s.free_bits[i / 64] &= ~(std::uint64_t{1} << i % 64);
    s.byte(i).set(slot_bits::gone);
    --s.free, ++s.gone;
    free_bytes_ -= s.size;
  }
  if (s.free == 0 && s.listed)
    unlist(s);
}

slab* slabs::any_empty() noexcept {
  for (std::size_t c = 0; c < open_.size(); ++c) {
    if (empties_[c] == 0)
      continue;
    for (slab* s = open_[c]; s; s = s->after)
      if (s->empty())
        return s;
  }
  return nullptr;
}

namespace {
// One slab, and what its slots are.
class slab_audit {
 public:
  slab_audit(slab const& of, std::vector<std::string>& wrong, std::string const& subject)
      : s_(of), wrong_(wrong), name_(subject + " slab of " + std::to_string(of.size) + " B: ") {}

  void run(std::uint64_t now) {
    for (heap_block const* p = s_.run; p; p = s_.next_part(*p))
      look_at_part(*p);
    for (std::uint32_t i = 0; i < s_.slots; ++i)
      look_at_slot(i);
    std::uint32_t const all = free_ + live_ + pending_ + cached_ + gone_;
    if (free_ != s_.free || pending_ != s_.pending || gone_ != s_.gone || all != s_.slots)
      say("slots != free + live + pending + cached + gone");
    if (s_.listed != (s_.free > 0))
      say("it is listed without a free slot, or has one and is not listed");
    if (s_.freed > now)
      say("its free stamp is ahead of its stream");
  }
  std::size_t run_bytes() const { return run_bytes_; }
  std::size_t free_bytes() const { return std::size_t{free_} * s_.size; }

 private:
  void say(char const* what) { wrong_.push_back(name_ + what); }

  void look_at_part(heap_block const& p) {
    run_bytes_ += p.bytes;
    if (p.is != state::slab || p.in_slab != &s_)
      say("a part of its run belongs to another slab");
    for (address a = p.at; a < p.end(); a += cell) {
      if (p.in->table.slab_at(a) != &s_)
        say("a cell of its run belongs to another slab");
      if (p.in->table.slab_of_granule(a) && p.in->table.slab_in_cell(a))
        say("a granule of one slab also has cells");
    }
  }

  void look_at_slot(std::uint32_t i) {
    bool const bit = (s_.free_bits[i / 64] >> (i % 64) & 1) != 0;
    if (touches_others(i) != s_.has_gone(i))
      say("a slot with a returned cell is not marked as gone, or another slot is");
    if (s_.has_gone(i)) {
      ++gone_;
      if (bit)
        say("a slot that is gone has its free bit set");
      return;
    }
    slot const is = s_.at(i);
    free_ += is == slot::free;
    live_ += is == slot::live;
    pending_ += is == slot::pending;
    cached_ += is == slot::cached;
    if (bit != (is == slot::free))
      say("the free bit and the state of a slot differ");
    if (bit && i / 64 < s_.hint)
      say("a slot below the hint is free");
    look_at_notes(i, is);
  }

  // Whether one of the slot's cells has gone to another owner.
  bool touches_others(std::uint32_t i) const {
    for (address a = round_down(s_.start(i), cell); a < s_.start(i) + s_.size; a += cell) {
      if (s_.run->in->table.slab_at(a) != &s_)
        return true;
    }
    return false;
  }

  void look_at_notes(std::uint32_t i, slot is) {
    bool const noted = s_.notes.count(i) != 0;
    std::uintptr_t mark = 0;
    std::uintptr_t second = 0;
    if (s_.users_storage) {
      mark = s_.users_storage[i][0].load();
      second = s_.users_storage[i][1].load();
    }
    bool const more = (mark & slab::more) != 0;
    if ((noted && !s_.has_note(i)) || (s_.users_storage && noted != more))
      say("the notes and the flag of a slot differ");
    if ((is == slot::free || is == slot::pending) && (noted || mark || second))
      say("a freed slot has a note or a mark");
  }

  slab const& s_;
  std::vector<std::string>& wrong_;
  std::string const name_;
  std::size_t run_bytes_ = 0;
  std::uint32_t free_ = 0;
  std::uint32_t live_ = 0;
  std::uint32_t pending_ = 0;
  std::uint32_t cached_ = 0;
  std::uint32_t gone_ = 0;
};
}  // namespace

void slabs::validate(std::vector<std::string>& wrong, std::string const& subject, std::uint64_t now) const {
  std::array<std::size_t, size_classes::count> counts{};
  std::array<std::size_t, size_classes::count> empties{};
  std::size_t in_runs = 0;
  std::size_t free_bytes = 0;
  std::size_t words = 0;
  for (auto const& s : all_) {
    if (!s->run)
      continue;
    slab_audit audit(*s, wrong, subject);
    audit.run(now);
    in_runs += audit.run_bytes();
    free_bytes += audit.free_bytes();
    words += words_of(*s);
    ++counts[static_cast<std::size_t>(s->size_class)];
    empties[static_cast<std::size_t>(s->size_class)] += s->empty();
  }
  if (counts != counts_ || empties != empties_)
    wrong.push_back(subject + ": the counts of slabs by size class are wrong");
  if (in_runs != in_runs_ || free_bytes != free_bytes_ || words != words_)
    wrong.push_back(subject + ": the counted bytes of runs, or of their free slots, are wrong");
}

}  // namespace weir::memory

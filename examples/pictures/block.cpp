// One stream after another asks for memory: each request is served from another place.
#include <vector>

#include "scenes.h"
#include "weir/sim.h"
#include "weir/stream.h"

namespace pictures {
using namespace weir::literals;

void block(std::ostream& out) {
  weir::runtime machine(still_device(64_MiB));
  weir::runtime_guard const in(machine);
  weir::stream a, b;
  film shots(out, "block");

  void* const first = weir::allocate(a, 512);
  shots.shoot_new(first, "A", "A asks for 512 B", "a new slab, on a new page");
  void* const second = weir::allocate(a, 512);
  shots.shoot_new(second, "A", "A asks for 512 B again", "the thread cache");
  void* const large = weir::allocate(a, 12_MiB);
  shots.shoot_new(large, "A", "A asks for 12 MiB", "new pages");
  weir::deallocate(large);
  void* const same = weir::allocate(a, 8_MiB);
  expect(same == large, "a freed block serves the next request of its stream");
  shots.shoot_new(same, "A", "A frees it and asks for 8 MiB", "a free block of A");
  void* const lent = weir::allocate(a, 16_MiB);
  shots.shoot_new(lent, "A", "A asks for 16 MiB", "the 4 MiB behind the block, and new pages");
  weir::deallocate(lent);
  b.wait(a);
  void* const borrowed = weir::allocate(b, 15_MiB);
  expect(borrowed == lent, "a stream that is ordered behind a free takes the block");
  shots.shoot_new(borrowed, "B", "A frees it. B waits for A and asks for 15 MiB", "a free block of A");
  void* const own = weir::allocate(b, 24_MiB);
  shots.shoot_new(own, "B", "B asks for 24 MiB", "new pages, and a free piece of A's");
  weir::deallocate(same);
  void* const last = weir::allocate(b, 22_MiB);
  shots.shoot_new(last, "B", "A frees 8 MiB. B asks for 22 MiB",
                  "the host waits; A's pages move, new ones fill the rest");
  for (void* const p : {first, second, borrowed, own, last})
    weir::deallocate(p);
}

// Two sizes of small blocks. Every slot of a slab has one size.
void slots(std::ostream& out) {
  weir::runtime machine(still_device(64_MiB));
  weir::runtime_guard const in(machine);
  weir::stream const s;
  film shots(out, "slots");

  std::vector<void*> small, medium;
  for (int i = 0; i < 48; ++i)
    small.push_back(weir::allocate(s, 512));
  shots.shoot("48 blocks of 512 B", "a slab of slots of 512 B");
  for (int i = 0; i < 12; ++i)
    medium.push_back(weir::allocate(s, 3000));
  shots.shoot("12 blocks of 3,000 B", "a slab of slots of 3,072 B");
  for (std::size_t i = 0; i < small.size(); i += 2)
    weir::deallocate(small[i]);
  for (std::size_t i = 0; i < medium.size(); i += 3)
    weir::deallocate(medium[i]);
  shots.shoot("every second of 512 B and every third of 3,000 B is freed", "the slots stay");
  for (std::size_t i = 0; i < small.size(); i += 2)
    small[i] = weir::allocate(s, 500);
  for (std::size_t i = 0; i < medium.size(); i += 3)
    medium[i] = weir::allocate(s, 3072);
  shots.shoot("24 blocks of 500 B and 4 of 3,072 B", "the free slots");
  for (auto const* const all : {&small, &medium})
    for (void* const p : *all)
      weir::deallocate(p);
}

}  // namespace pictures

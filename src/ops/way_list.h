// Several ways lead to the same bits. Those of one kind stand in a list, by their names: the first that a plan allows
// and that pays is taken, unless another one is forced. `explain` prints the names.
#ifndef GYROGRAD_OPS_WAY_LIST_H_
#define GYROGRAD_OPS_WAY_LIST_H_

#include <optional>
#include <span>

namespace gyrograd::internal {

// The last way of a list is allowed, and pays, always. Whether one pays is asked first: it takes less time.
template <class Way, class Plan>
struct WayEntry {
  Way way;
  const char* name;
  bool (*allowed)(const Plan& plan);
  bool (*pays)(const Plan& plan);
};

template <class Way, class Plan>
using WayList = std::span<const WayEntry<Way, Plan>>;

// A forced way that the plan does not allow is passed over.
template <class Way, class Plan>
Way ChooseWay(WayList<Way, Plan> list, const Plan& plan, std::optional<Way> forced) {
  if (forced) {
    for (const WayEntry<Way, Plan>& entry : list) {
      if (entry.way == *forced && entry.allowed(plan)) return entry.way;
    }
  }
  for (const WayEntry<Way, Plan>& entry : list) {
    if (entry.pays(plan) && entry.allowed(plan)) return entry.way;
  }
  return list.back().way;
}

template <class Way, class Plan>
const char* NameOf(WayList<Way, Plan> list, Way way) {
  for (const WayEntry<Way, Plan>& entry : list) {
    if (entry.way == way) return entry.name;
  }
  return "";
}

template <class Plan>
bool Always(const Plan&) {
  return true;
}

}  // namespace gyrograd::internal

#endif  // GYROGRAD_OPS_WAY_LIST_H_

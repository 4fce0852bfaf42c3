// SPDX-License-Identifier: Apache-2.0

package request

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// In the mode fit of scheduling, the Node has labels about its single GPUs. A policy of the API
// server adds conditions on the labels to pods, so that the scheduler binds a pod only where single
// GPUs have room for it. docs/decisions/0039 describes both.
const (
	// FitLabel is "true" on Nodes with the labels. Their names begin with FitPrefix:
	// "nri-vgpu.io/fit-2a-memory" is a size that each of two GPUs of the node has.
	FitLabel  = "nri-vgpu.io/fit"
	FitPrefix = FitLabel + "-"
	// FitTurn is the resource of which each pod takes one unit and the Node offers one, so that the
	// scheduler binds one pod until the labels are up to date again.
	FitTurn = FitPrefix + "turn"
)

// FitCounts are the numbers of GPUs for which a Node has labels. Pods with other numbers of GPUs need
// the next larger one.
func FitCounts() []int { return []int{1, 2, 4, 8} }

// FitSizes are the names of the sizes for each number of GPUs. A size that is larger than another in
// one dimension is smaller in another.
func FitSizes() []string { return []string{"a", "b", "c", "d"} }

// Room is what a GPU, or each of several, has free.
type Room struct {
	MiB     int64 // of memory
	Percent int64 // of the GPU's memory
	Cores   int64 // percent of the GPU's time
}

// Holds reports whether a room is at least as large as another in each dimension.
func (r Room) Holds(q Room) bool {
	return r.MiB >= q.MiB && r.Percent >= q.Percent && r.Cores >= q.Cores
}

// Fit returns the labels about the GPUs of a node by what is left of them.
func Fit(gpus []gpu.GPU, left map[string]Left, cfg config.Config) map[string]string {
	labels := map[string]string{}
	for n, rooms := range FitRooms(gpus, left, cfg) {
		for i, r := range rooms {
			for name, value := range map[string]int64{"memory": r.MiB, "percent": r.Percent, "cores": r.Cores} {
				labels[fmt.Sprintf("%s%d%s-%s", FitPrefix, n, FitSizes()[i], name)] = strconv.FormatInt(value, 10)
			}
		}
	}
	return labels
}

// FitRooms returns, for each number of GPUs that has labels, the rooms in them: at most as many as
// there are names of sizes. GPUs without a free slot do not count.
func FitRooms(gpus []gpu.GPU, left map[string]Left, cfg config.Config) map[int][]Room {
	var rooms []Room
	for _, g := range gpus {
		if l, ok := left[g.UUID]; ok {
			if r := roomOf(l, Usable(g, cfg), cfg.Node.SlotsPerGPU); r.MiB > 0 {
				rooms = append(rooms, r)
			}
		}
	}
	all := map[int][]Room{}
	for _, n := range FitCounts() {
		if some := fewest(largest(rooms, n)); len(some) > 0 {
			all[n] = some
		}
	}
	return all
}

func roomOf(l Left, total uint64, slots int) Room {
	_, mib := l.counted(slots)
	percent := most(100, func(n int64) bool { return Memory{PPM: uint32(n) * ppmPerPercent}.On(total) <= l.Memory })
	return Room{mib, percent, l.percent()}
}

// largest returns the rooms that each of n GPUs have, without those that another one holds.
func largest(rooms []Room, n int) []Room {
	var all []Room
	for _, mib := range values(rooms, func(r Room) int64 { return r.MiB }) {
		for _, percent := range values(rooms, func(r Room) int64 { return r.Percent }) {
			var cores []int64 // of the GPUs with as much memory
			for _, r := range rooms {
				if r.MiB >= mib && r.Percent >= percent {
					cores = append(cores, r.Cores)
				}
			}
			if len(cores) >= n {
				slices.SortFunc(cores, func(a, b int64) int { return cmp.Compare(b, a) })
				all = append(all, Room{mib, percent, cores[n-1]})
			}
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(r Room) bool {
		return slices.ContainsFunc(all, func(q Room) bool { return q != r && q.Holds(r) })
	})
}

// values returns the different values of a dimension, the largest first.
func values(rooms []Room, of func(Room) int64) []int64 {
	set := map[int64]bool{}
	for _, r := range rooms {
		set[of(r)] = true
	}
	return slices.SortedFunc(maps.Keys(set), func(a, b int64) int { return cmp.Compare(b, a) })
}

// fewest returns as many rooms as there are names of sizes: those with the most of each dimension,
// and then those with the most memory and time together. A pod that fits only in another room waits.
func fewest(rooms []Room) []Room {
	most := len(FitSizes())
	if len(rooms) <= most {
		return rooms
	}
	var chosen []Room
	for _, of := range []func(Room) int64{
		func(r Room) int64 { return r.MiB },
		func(r Room) int64 { return r.Cores },
		func(r Room) int64 { return r.Percent },
		func(r Room) int64 { return r.MiB * r.Cores },
	} {
		slices.SortStableFunc(rooms, func(a, b Room) int { return cmp.Compare(of(b), of(a)) })
		for _, r := range rooms {
			if !slices.Contains(chosen, r) {
				chosen = append(chosen, r)
				break
			}
		}
	}
	return chosen[:min(len(chosen), most)]
}

// SPDX-License-Identifier: Apache-2.0

package request

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/nri-vgpu/nri-vgpu/pkg/config"
	"github.com/nri-vgpu/nri-vgpu/pkg/gpu"
)

// In the mode fit of scheduling, the Node has labels with the free capacity of its single GPUs. A
// policy of the API server adds conditions on the labels to pods. The scheduler then binds a pod only
// where single GPUs have room for the pod. docs/decisions/0045 describes labels and conditions.
const (
	// FitLabel is "true" on Nodes with the labels. The names of the other labels begin with
	// FitPrefix: "nri-vgpu.io/fit-2a-memory" is the free memory that each of two GPUs has.
	FitLabel  = "nri-vgpu.io/fit"
	FitPrefix = FitLabel + "-"
	// FitTurn is the resource of which each pod takes one unit. The Node offers one free unit, so
	// that the scheduler binds one pod before the labels are up to date again.
	FitTurn = FitPrefix + "turn"
	// FitHeld begins the Node's labels for the shapes of the node's pods. The condition of a pod
	// whose shape the node holds is always true, so kubelet accepts the pod again after a restart.
	FitHeld = FitPrefix + "held-"
	// FitFull begins the labels of the agent's pod for the held shapes that have no room for
	// another pod. Only the scheduler compares labels of pods.
	FitFull = FitPrefix + "full-"
)

// FitCounts returns the numbers of GPUs for which a Node has labels. Pods with other numbers of GPUs
// need the next larger number. The largest number is MaxGPUs.
func FitCounts() []int { return []int{1, 2, 4, 8, 10, MaxGPUs} }

// FitSizes returns the names of the sizes for each number of GPUs. No size has as much of everything
// as another size.
func FitSizes() []string { return []string{"a", "b", "c", "d"} }

// Room is the free capacity of a GPU, or of each of several GPUs.
type Room struct {
	MiB     int64 // of memory
	Percent int64 // of the GPU's memory
	Cores   int64 // percent of the GPU's time
}

// Holds reports whether a room is at least as large as another room in each dimension.
func (r Room) Holds(q Room) bool {
	return r.MiB >= q.MiB && r.Percent >= q.Percent && r.Cores >= q.Cores
}

// Rooms are the rooms of a node by the number of GPUs that have each of the rooms.
type Rooms map[int][]Room

// Fits reports whether a number of GPUs each have a room, as the scheduler compares the labels.
func (r Rooms) Fits(gpus int64, room Room) bool {
	counts := FitCounts()
	i := slices.IndexFunc(counts, func(count int) bool { return int64(count) >= gpus })
	if i < 0 {
		i = len(counts) - 1 // as in the policy; only several containers together need more GPUs
	}
	return slices.ContainsFunc(r[counts[i]], func(have Room) bool { return have.Holds(room) })
}

// FitsShape reports whether a shape has room. A shape consists of one to three alternatives, such as
// "1-4096-0-30" or "1-6144-0-0.2-4096-0-0". An alternative consists of a number of GPUs, MiB, percent
// of the memory and percent of the time.
func (r Rooms) FitsShape(shape string) bool {
	for alternative := range strings.SplitSeq(shape, ".") {
		var gpus int64
		var room Room
		// Sscanf reads the end of the text as a newline.
		_, err := fmt.Sscanf(alternative+"\n", "%d-%d-%d-%d\n", &gpus, &room.MiB, &room.Percent, &room.Cores)
		if err == nil && r.Fits(gpus, room) {
			return true
		}
	}
	return false
}

// Labels returns the rooms as labels of the Node.
func (r Rooms) Labels() map[string]string {
	labels := map[string]string{}
	for n, rooms := range r {
		for i, room := range rooms {
			for name, value := range map[string]int64{"memory": room.MiB, "percent": room.Percent, "cores": room.Cores} {
				labels[fmt.Sprintf("%s%d%s-%s", FitPrefix, n, FitSizes()[i], name)] = strconv.FormatInt(value, 10)
			}
		}
	}
	return labels
}

// RoomsOf returns the rooms of a node: for each number of GPUs at most as many rooms as there are
// names of sizes. RoomsOf ignores GPUs without a free slot. The GPUs of a container with several GPUs
// are no MIG devices, and the Multi-Process Service serves all of them or none.
func RoomsOf(gpus []gpu.GPU, left map[string]Left, cfg config.Config) Rooms {
	var single []Room
	several := map[bool][]Room{} // by whether the Multi-Process Service serves the GPUs
	for _, g := range gpus {
		l, ok := left[g.UUID]
		r := RoomOf(g, l, cfg)
		if !ok || r.MiB == 0 {
			continue
		}
		single = append(single, r)
		if mps := cfg.Sharing.ByMPS(g.UUID); !gpu.IsMIG(g.UUID) {
			several[mps] = append(several[mps], r)
		}
	}
	all := Rooms{}
	for _, n := range FitCounts() {
		rooms := largest(single, n)
		if n > 1 {
			rooms = maximal(append(largest(several[false], n), largest(several[true], n)...))
		}
		if some := fewest(rooms); len(some) > 0 {
			all[n] = some
		}
	}
	return all
}

// RoomOf returns the room of a GPU. A GPU without a free slot has no memory to offer.
func RoomOf(g gpu.GPU, left Left, cfg config.Config) Room {
	_, mib := left.counted(cfg.Node.SlotsPerGPU)
	total := Usable(g, cfg)
	percent := most(100, func(n int64) bool { return percentOf(n).On(total) <= left.Memory })
	return Room{mib, percent, left.percent()}
}

// largest returns the rooms that each of n GPUs have, without the rooms that another room holds.
func largest(rooms []Room, n int) []Room {
	var all []Room
	for _, mib := range values(rooms, func(r Room) int64 { return r.MiB }) {
		for _, percent := range values(rooms, func(r Room) int64 { return r.Percent }) {
			var cores []int64 // of the GPUs with at least as much memory
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
	return maximal(all)
}

// maximal returns the rooms that no other room holds, without repetitions.
func maximal(all []Room) []Room {
	var rooms []Room
	for _, r := range all {
		if !slices.Contains(rooms, r) && !slices.ContainsFunc(all, func(q Room) bool { return q != r && q.Holds(r) }) {
			rooms = append(rooms, r)
		}
	}
	return rooms
}

// values returns the different values of a dimension, the largest first.
func values(rooms []Room, of func(Room) int64) []int64 {
	set := map[int64]bool{}
	for _, r := range rooms {
		set[of(r)] = true
	}
	return slices.SortedFunc(maps.Keys(set), func(a, b int64) int { return cmp.Compare(b, a) })
}

// fewest returns at most as many rooms as there are names of sizes. fewest prefers the rooms with the
// most of each dimension, and then the room with the most memory and time together. A pod that fits
// only in another room waits.
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

// FitAffinity returns the part of a pod's affinity that contains the pod's shape, or nil for a pod
// without a shape.
func FitAffinity(affinity *corev1.Affinity) *corev1.Affinity {
	if affinity == nil || affinity.NodeAffinity == nil || affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	for _, term := range affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, e := range term.MatchExpressions {
			if strings.HasPrefix(e.Key, FitHeld) {
				return &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
					NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: e.Key, Operator: e.Operator}}}},
				}}}
			}
		}
	}
	return nil
}

// ShapeOf returns the shape that the policy wrote into a pod's affinity, or "". A pod's affinity
// does not change after the binding.
func ShapeOf(pod *corev1.Pod) string {
	affinity := FitAffinity(pod.Spec.Affinity)
	if affinity == nil {
		return ""
	}
	key := affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchExpressions[0].Key
	return strings.TrimPrefix(key, FitHeld)
}

// SPDX-License-Identifier: Apache-2.0

package show

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
)

// totalTitle marks the line of totals in the first column of a table.
const totalTitle = "TOTAL"

func processName(p agentapi.Process) string {
	return "process/" + strconv.FormatUint(uint64(p.PID), 10)
}

// processTotals counts the GPUs and processes, and adds up the processes' memory and the containers'
// requests.
func processTotals(list []agentapi.Process) map[string]string {
	devices, containers := map[string]bool{}, map[string]bool{}
	used, asked := (*uint64)(nil), map[string]int64{}
	for _, p := range list {
		devices[p.UUID] = true
		used = plus(used, p.MemoryUsedBytes)
		container := strings.Join([]string{p.Namespace, p.Pod, p.Container}, "/")
		if containers[container] {
			continue
		}
		containers[container] = true
		for name, n := range p.Requests {
			asked[name] += n
		}
	}
	return map[string]string{
		"POD": totalTitle, "DEVICE": count(len(devices), "GPU"), "MEMORY": ofLimit(used, 0), "PID": strconv.Itoa(len(list)), "REQ": requests(asked),
	}
}

// deviceTotals adds up the memory of the GPUs, and their shares by resource.
func deviceTotals(list []agentapi.Device) map[string]string {
	used, total := (*uint64)(nil), uint64(0)
	var sums []agentapi.Sharing
	at := map[string]int{}
	for _, d := range list {
		used, total = plus(used, d.MemoryUsedBytes), total+d.MemoryBytes
		for _, s := range d.Sharing {
			i, known := at[s.Resource]
			if !known {
				i, at[s.Resource] = len(sums), len(sums)
				sums = append(sums, agentapi.Sharing{})
			}
			sums[i].Held += s.Held
			sums[i].PerGPU += s.PerGPU
		}
	}
	return map[string]string{
		"IDX": totalTitle, "UUID": count(len(list), "GPU"), "MEMORY": ofLimit(used, total), "SHARES": each(sums, sharesHeld),
	}
}

func sharesHeld(s agentapi.Sharing) string { return fmt.Sprintf("%d/%d", s.Held, s.PerGPU) }

// plus adds a known amount to a sum. The sum is nil until an amount is known.
func plus(sum, amount *uint64) *uint64 {
	if sum == nil || amount == nil {
		return cmp.Or(sum, amount)
	}
	total := *sum + *amount
	return &total
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

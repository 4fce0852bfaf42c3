// SPDX-License-Identifier: Apache-2.0

package show

import (
	"bytes"
	"context"
	"errors"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
)

func overview(node string) agentapi.Overview {
	used := func(mib uint64) *uint64 { bytes := mib << 20; return &bytes }
	had := func(percent float64) *float64 { return &percent }
	return agentapi.Overview{
		Node: node,
		GPUs: []agentapi.GPU{{Node: node, Device: agentapi.Device{UUID: "GPU-" + node, MemoryBytes: 1000 << 20, MemoryUsedBytes: used(500), Utilisation: had(30)},
			Room: &agentapi.Room{MemoryBytes: 1000 << 20, FreeMemoryBytes: 400 << 20, FreeComputePPM: 750_000, FreeSlots: 8, Holders: 2}}},
		Containers: []agentapi.Container{
			{Namespace: "a", Pod: "p", Container: "c", Node: node, GPUs: []agentapi.Share{{UUID: "GPU-" + node, MemoryLimitBytes: 100 << 20, MemoryUsedBytes: used(10), Utilisation: had(20.04), ComputeLimitPPM: 250_000, ComputeMaximumPPM: 500_000,
				Account: &agentapi.Account{ThrottledSeconds: 75, Refusals: 2}}}},
			{Namespace: "b", Pod: "q", Container: "c", Node: node, GPUs: []agentapi.Share{{UUID: "GPU-" + node, MemoryLimitBytes: 500 << 20, MemoryUsedBytes: used(400)}}},
		},
		Processes: []agentapi.Process{
			{Namespace: "a", Pod: "p", Container: "c", Node: node, UUID: "GPU-" + node, PID: 7, Command: "train", MemoryUsedBytes: used(10), ComputeLimitPPM: 250_000, ComputeMaximumPPM: 500_000},
			{Node: node, UUID: "GPU-" + node, PID: 8, Command: "daemon"},
		},
	}
}

func written(t *testing.T, l Listing, write func(Listing) error) string {
	t.Helper()
	var out bytes.Buffer
	l.Out = &out
	if err := write(l); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestListings(t *testing.T) {
	all := []agentapi.Overview{overview("n1")}
	table := Listing{Format: FormatTable, Order: ByName}
	for name, c := range map[string]struct{ got, want string }{
		"gpus": {written(t, table, func(l Listing) error { return l.GPUs(all) }),
			"NODE  GPU  NAME  MEMORY        ALLOCATED     TIME  ALLOCATED  CONTAINERS  HEALTH\nn1    0    -     500/1000 MiB  600/1000 MiB  30 %  25 %       2           ok\n"},
		"nodes": {written(t, table, func(l Listing) error {
			pooled := overview("n2")
			pooled.Pool, pooled.LeftOut, pooled.OfferedTwice, pooled.Foreign = "a100", []string{"GPU-x", "GPU-y"}, []string{"GPU-n2"}, map[string]int{"nvidia.com/gpu": 3, "nvidia.com/mig-1g.5gb": 0}
			return l.Nodes(append(all, pooled))
		}),
			"NODE  POOL  GPUS  CONTAINERS  LEFT OUT  OFFERED TWICE  FOREIGN\n" +
				"n1    -     1     2           0         0              -\n" +
				"n2    a100  0     2           2         1              3 × nvidia.com/gpu\n"},
		"pods": {written(t, table, func(l Listing) error { return l.Pods(Entries(all)) }),
			"NAMESPACE  POD  CONTAINER  NODE  GPU  MEMORY       TIME          THROTTLED  REFUSED  PROCESSES  STATUS\n" +
				"a          p    c          n1    0    10/100 MiB   20.0/25-50 %  1m15s      2        0          -\n" +
				"b          q    c          n1    0    400/500 MiB  - %           -          -        0          -\n"},
		"by memory": {written(t, Listing{Format: FormatTable, Order: ByMemory, NoHeaders: true}, func(l Listing) error { return l.Pods(Entries(all)) }),
			"b  q  c  n1  0  400/500 MiB  - %           -      -  0  -\na  p  c  n1  0  10/100 MiB   20.0/25-50 %  1m15s  2  0  -\n"},
		"ps": {written(t, Listing{Format: FormatTable, Order: ByName, NoHeaders: true}, func(l Listing) error { return l.Processes(all) }),
			"-  -  -  n1  0  8  - MiB   - %        daemon\na  p  c  n1  0  7  10 MiB  -/25-50 %  train\n"},
		"waiting": {written(t, Listing{Format: FormatTable, Order: ByTime, NoHeaders: true}, func(l Listing) error {
			return l.Pods([]PodEntry{{Container: agentapi.Container{Namespace: "a", Pod: "w"}, Status: "Pending"}})
		}), "a  w  -  -  -  -  -  -  -  -  Pending\n"},
		"nothing, without headings": {written(t, Listing{Format: FormatTable, Order: ByName, NoHeaders: true}, func(l Listing) error { return l.Pods(nil) }), ""},
		"nothing as JSON":           {written(t, Listing{Format: FormatJSON, Order: ByName}, func(l Listing) error { return l.GPUs(nil) }), "[]\n"},
	} {
		if c.got != c.want {
			t.Errorf("%s: written was\n%swant\n%s", name, c.got, c.want)
		}
	}
	if got := written(t, Listing{Format: FormatYAML, Order: ByName}, func(l Listing) error { return l.Pods(Entries(all)) }); !strings.Contains(got, "pod: p\n") || !strings.Contains(got, "throttledSeconds: 75\n") {
		t.Errorf("as YAML it is\n%s", got)
	}
}

// TestOrderOfNamesAcrossNodes checks that pods and processes of all nodes are in the order of the pods'
// names.
func TestOrderOfNamesAcrossNodes(t *testing.T) {
	all := []agentapi.Overview{overview("n1"), overview("n2")}
	raw := Listing{Format: FormatTable, Order: ByName, NoHeaders: true}
	pods := written(t, raw, func(l Listing) error {
		return l.Pods(append(Entries(all), PodEntry{Container: agentapi.Container{Namespace: "a", Pod: "b"}}))
	})
	for got, want := range map[string]string{
		firstWords(pods): "a b, a p, a p, b q, b q",
		firstWords(written(t, raw, func(l Listing) error { return l.Processes(all) })): "- -, - -, a p, a p",
	} {
		if got != want {
			t.Errorf("the order is %s, want %s", got, want)
		}
	}
}

// TestOrderByUse checks that every format of a list of pods has the order of the flag. A container with
// several GPUs has the place of its largest part.
func TestOrderByUse(t *testing.T) {
	share := func(mib uint64, percent float64) agentapi.Share {
		bytes := mib << 20
		return agentapi.Share{MemoryUsedBytes: &bytes, Utilisation: &percent}
	}
	entry := func(pod string, shares ...agentapi.Share) PodEntry {
		return PodEntry{Container: agentapi.Container{Namespace: "a", Pod: pod, GPUs: shares}}
	}
	items := []PodEntry{entry("waits"), entry("two", share(300, 1), share(5, 90)), entry("large", share(400, 2)), entry("small", share(10, 50)), entry("unknown", agentapi.Share{})}
	for _, format := range []string{FormatJSON, FormatYAML, FormatName} {
		for by, want := range map[string]string{
			ByName: "large small two unknown waits", ByMemory: "large two small unknown waits", ByTime: "two small large unknown waits",
		} {
			text := written(t, Listing{Format: format, Order: by}, func(l Listing) error { return l.Pods(slices.Clone(items)) })
			var pods []string
			for _, found := range regexp.MustCompile(`(?:"pod": "|pod: |pod/)(\w+)`).FindAllStringSubmatch(text, -1) {
				pods = append(pods, found[1])
			}
			if got := strings.Join(pods, " "); got != want {
				t.Errorf("-o %s --sort-by %s: %s, want %s", format, by, got, want)
			}
		}
	}
}

// firstWords returns the first two words of each line.
func firstWords(table string) string {
	var words []string
	for line := range strings.Lines(table) {
		words = append(words, strings.Join(strings.Fields(line)[:2], " "))
	}
	return strings.Join(words, ", ")
}

func TestFilter(t *testing.T) {
	all := []agentapi.Overview{overview("n2"), overview("n1")}
	for name, c := range map[string]struct {
		filter                       Filter
		nodes, containers, processes int
	}{
		"all":           {Filter{}, 2, 4, 4},
		"a node":        {Filter{Nodes: []string{"n1"}}, 1, 2, 2},
		"a namespace":   {Filter{Namespace: "a", Inside: true}, 2, 2, 2},
		"a pod":         {Filter{Names: []string{"q"}}, 2, 2, 0},
		"by its labels": {Filter{Selected: func(namespace, pod string) bool { return namespace == "a" && pod == "p" }}, 2, 2, 2},
		"in pods":       {Filter{Inside: true}, 2, 4, 2},
	} {
		chosen := c.filter.Apply(all)
		containers, processes := 0, 0
		for _, o := range chosen {
			containers += len(o.Containers)
			processes += len(o.Processes)
		}
		if len(chosen) != c.nodes || containers != c.containers || processes != c.processes || chosen[0].Node != "n1" {
			t.Errorf("%s: %d nodes, %d containers, %d processes were chosen, want %+v", name, len(chosen), containers, processes, c)
		}
	}
	if len(all[0].Containers) != 2 {
		t.Error("choosing changed what was chosen from")
	}
}

func TestComplain(t *testing.T) {
	away := agentapi.ErrAway
	if err := Incomplete(0, away); !errors.Is(err, away) {
		t.Errorf("where no agent answers: %v", err)
	}
	if err := Incomplete(1, away); err == nil || errors.Is(err, away) {
		t.Errorf("where one does not answer: %v", err)
	}
	if err := Incomplete(1, nil); err != nil {
		t.Errorf("where all answer: %v", err)
	}
}

// single is a source with one node.
type single struct {
	Source
	asked int
}

func (o *single) Overviews(context.Context) ([]agentapi.Overview, error) {
	o.asked++
	return []agentapi.Overview{overview("n1")}, nil
}

func TestLinesAreAnsweredUntilThereAreNoMore(t *testing.T) {
	var out bytes.Buffer
	source := &single{}
	if err := AnswerLines(t.Context(), source, strings.NewReader("\n\n"), &out); err != nil {
		t.Fatal(err)
	}
	if source.asked != 2 || strings.Count(out.String(), "\n") != 2 {
		t.Errorf("it asked %d times, and wrote %q", source.asked, out.String())
	}
}

// TestNoQuestionForAMinuteIsTheEnd checks that AnswerLines ends after a minute without a question.
func TestNoQuestionForAMinuteIsTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in, ask := io.Pipe()
		defer ask.Close()
		go func() { _, _ = io.WriteString(ask, "\n") }()
		begin, source := time.Now(), &single{}
		if err := AnswerLines(t.Context(), source, in, io.Discard); err != nil {
			t.Fatal(err)
		}
		if waited := time.Since(begin); waited != askPatience || source.asked != 1 {
			t.Errorf("it ended after %v, and %d answers", waited, source.asked)
		}
	})
}

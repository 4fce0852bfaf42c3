// SPDX-License-Identifier: Apache-2.0

package top

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/nri-vgpu/nri-vgpu/internal/agentapi"
	"github.com/nri-vgpu/nri-vgpu/internal/cli/show"
)

const mib = 1 << 20

func some[T any](v T) *T { return &v }

func share(uuid string, used, limit uint64, had float64, ppm uint32, throttled float64) agentapi.Share {
	return agentapi.Share{
		UUID: uuid, MemoryUsedBytes: some(used * mib), MemoryLimitBytes: limit * mib, Utilisation: some(had),
		ComputeLimitPPM: ppm, Processes: 1, Account: &agentapi.Account{ThrottledSeconds: throttled, Refusals: 3},
	}
}

// look is an overview of a node with two containers, a sound GPU and a lost GPU.
func look(at time.Time, throttled float64) agentapi.Overview {
	return agentapi.Overview{
		Node: "n1", At: at,
		GPUs: []agentapi.GPU{
			{Node: "n1", Device: agentapi.Device{Index: 0, UUID: "a", MemoryBytes: 1000 * mib, MemoryUsedBytes: some(uint64(900 * mib)), Utilisation: some(80.0)}},
			{Node: "n1", Device: agentapi.Device{Index: 1, UUID: "b", MemoryBytes: 1000 * mib, Unhealthy: "XID 79"}},
		},
		Containers: []agentapi.Container{
			{Namespace: "ns", Pod: "big", Container: "main", PodUID: "1", GPUs: []agentapi.Share{share("a", 600, 700, 5, 250_000, throttled)}},
			{Namespace: "ns", Pod: "busy", Container: "main", PodUID: "2", GPUs: []agentapi.Share{share("a", 300, 300, 75, 0, 0)}},
		},
		Processes: []agentapi.Process{{UUID: "a"}, {UUID: "a"}},
	}
}

func who(list []row) []string {
	var names []string
	for _, r := range list {
		names = append(names, r.name())
	}
	return names
}

func TestContainersStandBelowTheirGPUInOrder(t *testing.T) {
	all := []agentapi.Overview{look(time.Now(), 0)}
	for order, want := range map[string][]string{
		show.ByName:   {"n1 GPU 0", "  ns/big/main", "  ns/busy/main", "n1 GPU 1"},
		show.ByMemory: {"n1 GPU 0", "  ns/big/main", "  ns/busy/main", "n1 GPU 1"},
		show.ByTime:   {"n1 GPU 0", "  ns/busy/main", "  ns/big/main", "n1 GPU 1"},
	} {
		if got := who(rows(all, order, nil)); !slices.Equal(got, want) {
			t.Errorf("by %s they are %q, want %q", order, got, want)
		}
	}
}

func TestThrottledTimeIsOfEachSecondAfterTwoLooks(t *testing.T) {
	begin := time.Now()
	before, after := look(begin, 10), look(begin.Add(2*time.Second), 11)
	if got := rows([]agentapi.Overview{after}, show.ByName, nil)[1].back; got != "11.0s" {
		t.Errorf("by one look it is %q", got)
	}
	if got := rows([]agentapi.Overview{after}, show.ByName, map[string]agentapi.Overview{"n1": before})[1].back; got != "50 %" {
		t.Errorf("by two looks it is %q", got)
	}
}

func TestTable(t *testing.T) {
	want := "NODE  GPU  WHO           MEMORY        TIME      THROTTLED  REFUSED  PROCESSES  HEALTH\n" +
		"n1    0    (all)         900/1000 MiB  80.0 %    -          -        2          ok\n" +
		"n1    0    ns/big/main   600/700 MiB   5.0/25 %  1.5s       3        1          -\n" +
		"n1    0    ns/busy/main  300/300 MiB   75.0 %    0.0s       3        1          -\n" +
		"n1    1    (all)         -/1000 MiB    - %       -          -        0          XID 79\n"
	if got := Table([]agentapi.Overview{look(time.Now(), 1.5)}, show.ByName, true); got != want {
		t.Errorf("the table is\n%swant\n%s", got, want)
	}
}

func TestFrameShowsBarsAgainstLimits(t *testing.T) {
	s := &state{overviews: []agentapi.Overview{look(time.Now(), 0)}, order: show.ByName}
	lines := frame(s, 120, 10)
	text := strings.Join(lines, "\n")
	for _, want := range []string{
		"nodes: 1  GPUs: 2  containers: 2  by name",
		"  ns/busy/main  [" + strings.Repeat("|", 24) + "] 300/300 MiB", "XID 79", "q quit",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the screen does not show %q:\n%s", want, text)
		}
	}
}

// TestBorrowedTimeIsBelowTheMaximum checks that a container above its guarantee shows its maximum, and
// a bar that is not full.
func TestBorrowedTimeIsBelowTheMaximum(t *testing.T) {
	o := look(time.Now(), 0)
	o.Containers[0].GPUs[0] = share("a", 600, 700, 25, 200_000, 0)
	o.Containers[0].GPUs[0].ComputeMaximumPPM = 500_000
	if table := Table([]agentapi.Overview{o}, show.ByName, false); !strings.Contains(table, "25.0/20-50 %") {
		t.Errorf("the table does not show guarantee and maximum:\n%s", table)
	}
	s := &state{overviews: []agentapi.Overview{o}, order: show.ByName}
	if screen := strings.Join(frame(s, 130, 10), "\n"); !strings.Contains(screen, "["+strings.Repeat("|", 12)+strings.Repeat(" ", 12)+"] 25.0/20-50 %") {
		t.Errorf("half of the maximum is not half a bar:\n%s", screen)
	}
}

func TestFrameFitsEveryScreen(t *testing.T) {
	s := &state{
		overviews: []agentapi.Overview{look(time.Now(), 0)}, order: show.ByName,
		errors: map[string]error{"n2": errors.New("away"), "n3": errors.New("away\nfor long")},
	}
	for width := range 200 {
		for height := range 20 {
			s.scroll = height
			lines := frame(s, width, height)
			if len(lines) > height {
				t.Fatalf("%d lines are on a screen of %dx%d", len(lines), width, height)
			}
			for _, line := range lines {
				if utf8.RuneCountInString(line) > width || strings.ContainsAny(line, "\n\r") {
					t.Fatalf("on a screen of %dx%d is the line %q", width, height, line)
				}
			}
		}
	}
	if text := strings.Join(frame(s, 100, 20), "\n"); !strings.Contains(text, "away for long") {
		t.Errorf("the node without an answer is missing:\n%s", text)
	}
}

func TestScrollingEndsAtTheEnd(t *testing.T) {
	s := &state{overviews: []agentapi.Overview{look(time.Now(), 0)}, order: show.ByName, scroll: 100}
	if lines := frame(s, 100, 5); s.scroll != 2 || !strings.Contains(lines[len(lines)-2], "n1 GPU 1") {
		t.Errorf("it scrolled to %d: %q", s.scroll, lines)
	}
}

func TestSplitKeys(t *testing.T) {
	for raw, want := range map[string][]key{
		"q":                   {"q"},
		"mt":                  {"m", "t"},
		"\x1b[A\x1bOBn":       {keyUp, keyDown, "n"},
		"\x1b[5~\x1b[1;5Cq":   {keyPageUp, "\x1b[1;5C", "q"},
		"\x1b":                {"\x1b"},
		"\x1b[":               {"\x1b", "["},
		"\x1b[12":             {"\x1b[12"},
		"":                    nil,
		"\x03":                {"\x03"},
		"\x1b[200~x\x1b[201~": {"\x1b[200~", "x", "\x1b[201~"},
	} {
		if got := split(raw); !slices.Equal(got, want) {
			t.Errorf("%q are the keys %q, want %q", raw, got, want)
		}
	}
}

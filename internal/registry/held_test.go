// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

const gpuA = "GPU-00112233-4455-6677-8899-aabbccddeeff"

// holder is a Holdings that returns the same answer for each process, and records the processes.
type holder struct {
	mu    sync.Mutex
	asked []Process
	// hang makes Of wait until its context ends, like a driver that does not answer.
	hang bool
}

func (h *holder) Of(ctx context.Context, process Process) (map[string]uint64, error) {
	h.mu.Lock()
	h.asked = append(h.asked, process)
	hang := h.hang
	h.mu.Unlock()
	if hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return map[string]uint64{gpuA: 5 << 20, "nonsense": 7}, nil
}

func (h *holder) set(hang bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.hang = hang
}

func (h *holder) last() Process {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.asked[len(h.asked)-1]
}

func heldQuestion(slot, pid uint32) []byte {
	raw := message(slot, pid)
	copy(raw, "NVGH")
	return raw
}

// holding returns a test server that treats the test's process as a container's process, and
// answers questions about the memory that the process holds.
func holding(t *testing.T) (*house, *holder) {
	t.Helper()
	h, held := newHouse(t), &holder{}
	h.Holdings = held
	h.contain(os.Getpid(), id)
	h.serve()
	return h, held
}

func (h *house) heldOutcome(o Outcome) uint64 {
	h.Registry.mu.Lock()
	defer h.Registry.mu.Unlock()
	return h.Registry.held[o]
}

func TestParseHeldQuestion(t *testing.T) {
	good := heldQuestion(3, 42)
	longer := append(heldQuestion(3, 42), 1, 2, 3, 4)
	longer[4], longer[6] = 2, heldSize+4
	for name, tt := range map[string]struct {
		raw  []byte
		good bool
	}{
		"this version's":   {good, true},
		"a later one's":    {longer, true},
		"none":             {nil, false},
		"its magic alone":  {good[:4], false},
		"cut off":          {good[:heldSize-1], false},
		"too long":         {append(bytes.Clone(good), make([]byte, maxMessage)...), false},
		"a registration":   {message(3, 42), false},
		"another size":     {append(heldQuestion(3, 42), 0), false},
		"version 0":        {append([]byte("NVGH\x00\x00\x10\x00"), good[8:]...), false},
		"another question": {[]byte("NVGQ\x01\x00\x10\x00\x02\x00\x00\x00\x00\x00\x00\x00"), false},
	} {
		claim, err := ParseHeldQuestion(tt.raw)
		if (err == nil) != tt.good || tt.good && claim != (Claim{Slot: 3, InnerPID: 42}) {
			t.Errorf("%s: got %+v, %v", name, claim, err)
		}
	}
}

func TestHeldAnswer(t *testing.T) {
	record := "00112233445566778899aabbccddeeff" + "0000400100000000"
	for name, tt := range map[string]struct {
		held map[string]uint64
		want string
	}{
		"nothing is known": {nil, "4e56474801001000" + "0000000000000000"},
		"a GPU":            {map[string]uint64{gpuA: 20 << 20}, "4e56474801002800" + "0100000000000000" + record},
		"names that are none": {map[string]uint64{"GPU-x": 1, "": 2, gpuA: 20 << 20, gpuA + "00": 3},
			"4e56474801002800" + "0100000000000000" + record},
	} {
		if diff := cmp.Diff(tt.want, hex.EncodeToString(HeldAnswer(tt.held))); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func FuzzParseHeldQuestion(f *testing.F) {
	f.Add(heldQuestion(0, 1))
	f.Add(message(0, 1))
	f.Add([]byte("NVGH"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		claim, err := ParseHeldQuestion(raw)
		if err == nil && (!IsHeldQuestion(raw) || len(raw) < heldSize || claim.InnerPID != binary.LittleEndian.Uint32(raw[12:])) {
			t.Errorf("%x became %+v", raw, claim)
		}
	})
}

// TestWhatAProcessHolds checks that the kernel identifies the asker, registered or not, whatever
// pid the asker claims.
func TestWhatAProcessHolds(t *testing.T) {
	h, held := holding(t)
	want := string(HeldAnswer(map[string]uint64{gpuA: 5 << 20}))
	if got := h.answered(h.dial(), heldQuestion(1, 99)); got != want {
		t.Errorf("before it registered: got %q", got)
	}
	h.say(message(1, uint32(os.Getpid())))
	eventually.Holds(h.T, patience, "it is registered", func() bool { return len(h.Registry.Processes(id)) == 1 })
	conn := h.dial()
	time.Sleep(20 * time.Millisecond) // meanwhile, the server waits for the message
	if got := h.answered(conn, heldQuestion(1, 99)); got != want {
		t.Errorf("late: got %q", got)
	}
	if who := held.last(); who.PID != os.Getpid() || who.Container != id || len(held.asked) != 2 {
		t.Errorf("asked was for %+v", held.asked)
	}
	if n := h.heldOutcome(Answered); n != 2 {
		t.Errorf("%d answers were counted", n)
	}
	if got := h.answered(h.dial(), heldQuestion(1, 99)[:15]); got != "" {
		t.Errorf("half a question got %q", got)
	}
	eventually.Holds(h.T, patience, "half a question is counted as invalid", func() bool {
		h.Registry.mu.Lock()
		defer h.Registry.mu.Unlock()
		return h.Registry.invalid == 1
	})
}

// TestQuestionsWhileTheDriverHangs checks that askers get no answers while the driver hangs. The
// server still handles registrations and other questions.
func TestQuestionsWhileTheDriverHangs(t *testing.T) {
	h, held := holding(t)
	h.Answers = &answers{}
	held.set(true)
	begin := time.Now()
	if got := h.answered(h.dial(), heldQuestion(1, 1)); got != "" {
		t.Errorf("got %q", got)
	}
	if took := time.Since(begin); took < heldPatience || took > 20*heldPatience {
		t.Errorf("it took %v", took)
	}
	// The server rejects questions beyond the bound at once.
	for range 2 * heldBounds.each {
		if _, err := h.dial().Write(heldQuestion(1, 1)); err != nil {
			t.Fatal(err)
		}
	}
	eventually.Holds(h.T, patience, "many are turned away", func() bool { return h.heldOutcome(Busy) >= uint64(heldBounds.each/2) })
	defer h.register(otherID)()
	eventually.Holds(h.T, patience, "another one registers", func() bool { return len(h.Registry.Processes(otherID)) == 1 })
	eventually.Holds(h.T, patience, "nobody waits any more", func() bool { return h.holding.open() == 0 })
	held.set(false)
	if got := h.answered(h.dial(), heldQuestion(1, 1)); !strings.HasPrefix(got, "NVGH") {
		t.Errorf("afterwards: got %q", got)
	}
}

// askHeld requests the memory that this process holds, and reports whether the server answered.
func askHeld(path string) (answered bool, err error) {
	conn, err := net.Dial("unixpacket", path)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	if _, err := conn.Write(heldQuestion(1, 1)); err != nil && !errors.Is(err, syscall.EPIPE) {
		return false, err
	}
	if err := conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return false, err
	}
	n, err := conn.Read(make([]byte, 1024))
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) {
		err = nil // the question was rejected
	}
	return n > 0, err
}

// TestAFloodOfHeldQuestions checks that the server bounds the rate of a flood of questions. Silent
// open connections block no question, and questions block no other connection.
func TestAFloodOfHeldQuestions(t *testing.T) {
	h, _ := holding(t)
	const askers = 10 // each question waits for a batch, so a single asker may stay below the bound
	var answered atomic.Int64
	var all sync.WaitGroup
	for range askers {
		all.Go(func() {
			for range 3 * heldBounds.burst / askers {
				switch got, err := askHeld(h.Path); {
				case err != nil:
					t.Error(err)
				case got:
					answered.Add(1)
				}
			}
		})
	}
	all.Wait()
	if answered.Load() < int64(heldBounds.burst) || h.heldOutcome(Busy) == 0 {
		t.Errorf("%d of %d were answered, %d turned away", answered.Load(), 3*heldBounds.burst, h.heldOutcome(Busy))
	}
	if !h.holding.mayAsk(otherID, heldBounds) {
		t.Error("another container may not ask")
	}
	if !h.queue.enter(id, askBounds) {
		t.Error("its container may not register")
	}
	h.queue.leave(id)
	for h.queue.enter(id, askBounds) { // take the places that silent connections would take
	}
	// A question that arrives with its connection needs no place among the silent connections.
	eventually.Holds(h.T, patience, "a question is answered beside silent connections", func() bool {
		conn := h.dial()
		defer conn.Close()
		return h.answered(conn, heldQuestion(1, 1)) != ""
	})
}

func TestWithoutHoldingsTheAnswerIsEmpty(t *testing.T) {
	h := newHouse(t)
	h.contain(os.Getpid(), id)
	h.serve()
	if got := h.answered(h.dial(), heldQuestion(1, 1)); got != "" {
		t.Errorf("got %q", got)
	}
}

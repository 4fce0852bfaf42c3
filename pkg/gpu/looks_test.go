// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/nri-vgpu/nri-vgpu/test/eventually"
)

// scripted is a driver whose queries take as long as the test sets.
type scripted struct {
	mu      sync.Mutex
	looks   map[string]int
	release map[string]chan struct{}
	// value is the memory that each query reports for process 7, read when the query begins.
	value atomic.Uint64
	err   error
}

func (s *scripted) Held(uuid string) (HeldBytes, error) {
	value := s.value.Load()
	s.mu.Lock()
	s.looks[uuid]++
	release := s.release[uuid]
	s.mu.Unlock()
	if release != nil {
		<-release
	}
	return HeldBytes{7: value, 8: 0}, s.err
}

func (s *scripted) count(uuid string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.looks[uuid]
}

func newScripted(uuids ...string) *scripted {
	s := &scripted{looks: map[string]int{}, release: map[string]chan struct{}{}}
	for _, uuid := range uuids {
		s.release[uuid] = make(chan struct{})
	}
	return s
}

// TestLooksAreShared checks that one query serves all waiting callers, and that a query that has
// begun serves no later caller.
func TestLooksAreShared(t *testing.T) {
	driver := newScripted("GPU-a")
	looks := NewLooks(driver)
	driver.value.Store(1)
	first := looks.Ask("GPU-a")
	eventually.Holds(t, 10*time.Second, "the first look begins", func() bool { return driver.count("GPU-a") == 1 })

	driver.value.Store(2)
	later := make([]*Look, 100)
	for i := range later {
		later[i] = looks.Ask("GPU-a")
	}
	driver.release["GPU-a"] <- struct{}{}
	if held, err := first.Wait(t.Context()); err != nil || held[7] != 1 {
		t.Errorf("the first caller got %v, %v", held, err)
	}
	driver.release["GPU-a"] <- struct{}{}
	for _, look := range later {
		if held, err := look.Wait(t.Context()); err != nil || held[7] != 2 {
			t.Fatalf("a caller during a query got %v, %v, want the current memory", held, err)
		}
	}
	if n := driver.count("GPU-a"); n != 2 {
		t.Errorf("%d looks for two times of asking", n)
	}
}

// TestAHungGPU checks that a GPU whose driver hangs blocks no query of another GPU, and no caller
// beyond the end of the caller's context.
func TestAHungGPU(t *testing.T) {
	driver := newScripted("GPU-hung")
	defer close(driver.release["GPU-hung"])
	looks := NewLooks(driver)
	driver.value.Store(5)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	begin := time.Now()
	held, err := looks.Of(ctx, 7, []string{"GPU-hung", "GPU-b"})
	if diff := cmp.Diff(map[string]uint64{"GPU-b": 5}, held); diff != "" || err != nil {
		t.Error(diff, err)
	}
	if took := time.Since(begin); took > time.Second {
		t.Errorf("it took %v", took)
	}
	looks.mu.Lock()
	looks.gpus["GPU-hung"].since = time.Now().Add(-2 * hung)
	looks.mu.Unlock()
	if _, err := looks.Ask("GPU-hung").Wait(context.Background()); !errors.Is(err, ErrHung) {
		t.Errorf("a driver that hangs for long: got %v", err)
	}
	if n := driver.count("GPU-hung"); n != 1 {
		t.Errorf("%d looks at a GPU that hangs", n)
	}
}

var errLost = errors.New("lost")

func TestOf(t *testing.T) {
	for name, tt := range map[string]struct {
		pid  int
		err  error
		want map[string]uint64
	}{
		"known":                      {7, nil, map[string]uint64{"GPU-a": 5, "GPU-b": 5}},
		"listed with 0 bytes":        {8, nil, map[string]uint64{}},
		"not listed":                 {9, nil, map[string]uint64{}},
		"the driver does not answer": {7, errLost, nil},
	} {
		t.Run(name, func(t *testing.T) {
			driver := newScripted()
			driver.value.Store(5)
			driver.err = tt.err
			got, err := NewLooks(driver).Of(t.Context(), tt.pid, []string{"GPU-a", "GPU-b"})
			if diff := cmp.Diff(tt.want, got); diff != "" || !errors.Is(err, tt.err) {
				t.Error(diff, err)
			}
		})
	}
}

// TestASlowDriverRests checks that the driver is idle half of the time although a caller queries it
// repeatedly, if queries take no longer than longestRest.
func TestASlowDriverRests(t *testing.T) {
	driver := &slow{took: 5 * time.Millisecond}
	looks := NewLooks(driver)
	begin := time.Now()
	for range 20 {
		if _, err := looks.Ask("GPU-a").Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(begin); took < 19*2*driver.took {
		t.Errorf("20 looks of %v took %v: it had no rest", driver.took, took)
	}
}

type slow struct{ took time.Duration }

func (s *slow) Held(string) (HeldBytes, error) {
	time.Sleep(s.took)
	return HeldBytes{}, nil
}

package hook

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestAFileSystemThatHangsHoldsNobodyUp(t *testing.T) {
	store, err := NewStore(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		store.inUse = make(chan struct{}, 1)
		answer := make(chan error)
		hang := func() error { return <-answer }
		none := func() error { return nil }
		begin := time.Now()
		if err := store.Bounded(hang); !errors.Is(err, errHangs) {
			t.Errorf("got %v", err)
		}
		for range 3 {
			if err := store.Bounded(none); !errors.Is(err, errHangs) {
				t.Errorf("while it hangs: got %v", err)
			}
		}
		if took := time.Since(begin); took != fileTime {
			t.Errorf("four callers waited for %v in all, want %v", took, fileTime)
		}
		answer <- nil
		synctest.Wait()
		for range 3 {
			if err := store.Bounded(none); err != nil {
				t.Errorf("once it answers: %v", err)
			}
		}
		failure := errors.New("full")
		if err := store.Bounded(func() error { return failure }); !errors.Is(err, failure) {
			t.Errorf("got %v, want %v", err, failure)
		}
	})
}

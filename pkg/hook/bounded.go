package hook

import (
	"errors"
	"time"
)

// fileTime bounds what waits for the file system of the containers' files.
const fileTime = time.Second

var errHangs = errors.New("the file system of paths.run_dir does not answer: look at the node's mounts")

// Bounded uses the containers' files and waits for no longer than fileTime. What
// takes longer goes on by itself; until it is done, Bounded fails at once. The next
// Save of a container, and Remove, undo what a late one has done. There is one
// caller at a time.
func (s *Store) Bounded(use func() error) error {
	select {
	case s.inUse <- struct{}{}:
	default:
		return errHangs
	}
	done := make(chan error, 1)
	go func() {
		err := use()
		<-s.inUse
		done <- err
	}()
	timer := time.NewTimer(fileTime)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return errHangs
	}
}

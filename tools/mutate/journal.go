// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// A journal is the file of a run's scores. A later run can resume from the file. The file is locked
// while it is open, because two runs would replace each other's mutants in the build directory.
type journal struct {
	*os.File
	options string           // the options that determine scores
	scores  map[string]score // of the earlier run, by package
}

// An entry is a line of a journal.
type entry struct {
	Options string
	score
}

// openJournal opens and locks the journal in the build directory. Unless o.resume is set, openJournal
// removes the scores of the earlier run.
func openJournal(dir string, o options) (*journal, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "scores.jsonl"), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o644)
	if err != nil {
		return nil, err
	}
	j := &journal{f, fmt.Sprintf("number=%d seed=%d all=%t only=%q", o.number, o.seed, o.all, o.only), map[string]score{}}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	switch {
	case errors.Is(err, unix.EWOULDBLOCK):
		err = fmt.Errorf("another run uses %s: wait until the run ends, or run mutate in another clone", dir)
	case err != nil:
		err = fmt.Errorf("lock %s: %w", f.Name(), err)
	case o.resume:
		err = j.read()
	default:
		err = f.Truncate(0)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return j, nil
}

// read reads the scores of an earlier run with the same options.
func (j *journal) read() error {
	for lines := json.NewDecoder(j); ; {
		var e entry
		switch err := lines.Decode(&e); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return fmt.Errorf("read %s: %w: run mutate without --resume", j.Name(), err)
		case e.Options == j.options:
			j.scores[e.Name] = e.score
		}
	}
}

// add writes a package's score.
func (j *journal) add(s score) error {
	if err := json.NewEncoder(j).Encode(entry{j.options, s}); err != nil {
		return fmt.Errorf("write %s: %w", j.Name(), err)
	}
	return nil
}

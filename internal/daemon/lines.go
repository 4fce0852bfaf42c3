// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"io"
	"slices"
	"sync/atomic"
	"time"
)

const (
	// mostLines is the greatest number of buffered lines.
	mostLines = 1024
	// flushPatience bounds the wait for the last lines.
	flushPatience = time.Second
)

// lines writes the log in the background. A container's log is a pipe that the runtime copies
// to a disk. If the disk hangs, no handler may wait for it.
type lines struct {
	out     io.Writer
	waiting chan line
	dropped atomic.Int64
}

// line is a line to write. A line without text marks a flush: the writer closes written after the
// writer has written all lines before the mark.
type line struct {
	text    []byte
	written chan struct{}
}

// newLines returns a writer for a log's lines. After dropping lines, the writer calls report with the
// number of dropped lines before it writes the next line.
func newLines(out io.Writer, report func(dropped int64)) *lines {
	l := &lines{out: out, waiting: make(chan line, mostLines)}
	go func() {
		for next := range l.waiting {
			if dropped := l.dropped.Swap(0); dropped > 0 {
				report(dropped)
			}
			if next.written != nil {
				close(next.written)
				continue
			}
			_, _ = l.out.Write(next.text) // an error cannot be logged
		}
	}()
	return l
}

// Write buffers a line, or drops it if the buffer is full. Write never blocks.
func (l *lines) Write(text []byte) (int, error) {
	select {
	case l.waiting <- line{text: slices.Clone(text)}:
	default:
		l.dropped.Add(1)
	}
	return len(text), nil
}

// flush waits until the lines so far are written, for at most flushPatience.
func (l *lines) flush() {
	timer := time.NewTimer(flushPatience)
	defer timer.Stop()
	last := line{written: make(chan struct{})}
	select {
	case l.waiting <- last:
	case <-timer.C:
		return
	}
	select {
	case <-last.written:
	case <-timer.C:
	}
}

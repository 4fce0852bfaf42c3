// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/nodereport"
)

// reportReader follows node.json by polling. Twenty stats per second cost less than
// an inotify watch, which must be recreated whenever the directory is. A stale
// heartbeat has to be detected by time anyway.
type reportReader struct {
	path string
	seen os.FileInfo
	err  error // of the last reading
	now  Observation
}

// observe reads the report if the file has changed. observe returns the same error until the
// file changes again. The observation keeps the last good report, which becomes stale,
// unless a newer agent writes reports in an unknown format.
func (r *reportReader) observe(now time.Time) (Observation, error) {
	info, err := os.Stat(r.path)
	if err != nil {
		// A missing file is no error: the agent may not have started.
		r.seen, r.err = nil, nil
		if os.IsNotExist(err) {
			return r.now, nil
		}
		return r.now, fmt.Errorf("look at the agent's report: %w", err)
	}
	if r.seen != nil && sameFile(r.seen, info) {
		return r.now, r.err
	}
	r.seen, r.err = info, nil
	report, err := nodereport.Read(r.path)
	newer := errors.Is(err, nodereport.ErrVersion)
	if err == nil || newer {
		r.now = advance(r.now, report, now)
		r.now.Newer = newer
	}
	if err != nil {
		r.err = fmt.Errorf("read the agent's report: %w", err)
	}
	return r.now, r.err
}

// changed reports whether the file was written since the last observation.
func (r *reportReader) changed() bool {
	info, err := os.Stat(r.path)
	return err == nil && (r.seen == nil || !sameFile(r.seen, info))
}

// sameFile reports whether the file was not written. The agent replaces the file,
// so every report has a new inode. The other properties are compared because inode
// numbers are reused.
func sameFile(a, b os.FileInfo) bool {
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// advance stores a report. A heartbeat that differs from the previous heartbeat
// proves that the agent is alive now. The first heartbeat proves only that the
// agent was alive when it wrote the report. A time far in the future is as wrong
// as a time far in the past.
func advance(last Observation, report nodereport.Report, now time.Time) Observation {
	alive := now
	switch {
	case last.Report == nil:
		// Round(0) drops the monotonic reading: the heartbeat has none.
		alive = now.Add(-now.Round(0).Sub(report.Heartbeat).Abs())
	case report.Heartbeat.Equal(last.Report.Heartbeat):
		alive = last.Alive
	}
	return Observation{Report: &report, Alive: alive}
}

// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/nri-vgpu/nri-vgpu/internal/nodereport"
)

// reportReader follows node.json by polling. Some stats per second cost less than an inotify watch,
// which would have to follow a recreated directory. Besides, the programs of a user share a small
// number of inotify instances.
type reportReader struct {
	path string
	seen os.FileInfo
	err  error // of the last reading
	now  Observation
}

// observe reads the report if the file has changed. observe returns the same error until the file
// changes again. After an error, the observation keeps the last valid report, which becomes stale.
// If a newer agent writes reports in an unknown format, the observation keeps only the heartbeat.
func (r *reportReader) observe(now time.Time) (Observation, error) {
	info, err := os.Stat(r.path)
	if err != nil {
		// A missing file is not an error: the agent may not have started.
		r.seen, r.err = nil, nil
		if os.IsNotExist(err) {
			return r.now, nil
		}
		return r.now, fmt.Errorf("stat the agent's report: %w", err)
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

// changed reports whether the agent has written the file since the last observation.
func (r *reportReader) changed() bool {
	info, err := os.Stat(r.path)
	return err == nil && (r.seen == nil || !sameFile(r.seen, info))
}

// sameFile reports whether two stats are of the same, unchanged file. The agent replaces the file,
// so every report has a new inode. sameFile also compares the time and size, because the file
// system reuses inode numbers.
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
		// Round(0) drops the monotonic reading, since the heartbeat has no monotonic reading.
		alive = now.Add(-now.Round(0).Sub(report.Heartbeat).Abs())
	case report.Heartbeat.Equal(last.Report.Heartbeat):
		alive = last.Alive
	}
	return Observation{Report: &report, Alive: alive}
}

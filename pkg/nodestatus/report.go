package nodestatus

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/nri-vgpu/nri-vgpu/pkg/nodereport"
)

// reportReader follows node.json. It is polled: a stat a second costs less
// than an inotify watch that must be re-made whenever the directory is, and
// a stale heartbeat has to be noticed by time anyway.
type reportReader struct {
	path string
	seen os.FileInfo
	now  Observation
}

// observe reads the report if its file has changed. An error is returned once
// per change; the observation keeps the last good report, which grows stale, unless
// a newer agent writes reports that are not understood.
func (r *reportReader) observe(now time.Time) (Observation, error) {
	info, err := os.Stat(r.path)
	if err != nil {
		// A missing file is no news: the agent may not have started.
		r.seen = nil
		if os.IsNotExist(err) {
			return r.now, nil
		}
		return r.now, fmt.Errorf("look at the agent's report: %w", err)
	}
	if r.seen != nil && sameFile(r.seen, info) {
		return r.now, nil
	}
	r.seen = info
	report, err := nodereport.Read(r.path)
	newer := errors.Is(err, nodereport.ErrVersion)
	if err == nil || newer {
		r.now = advance(r.now, report, now)
		r.now.Newer = newer
	}
	if err != nil {
		return r.now, fmt.Errorf("read the agent's report: %w", err)
	}
	return r.now, nil
}

// sameFile tells whether nothing was written: the agent replaces the file, so
// that every report is a new inode, and inode numbers may be used again.
func sameFile(a, b os.FileInfo) bool {
	return os.SameFile(a, b) && a.ModTime().Equal(b.ModTime()) && a.Size() == b.Size()
}

// advance takes a report in. A heartbeat that moved under our eyes proves
// that the agent lives now. The first one proves only that it lived when it
// was written; a time far in the future is as wrong as one far in the past.
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

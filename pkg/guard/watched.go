package guard

import (
	"fmt"
	"os"
	"sync"
	"time"
)

// watched is what a file says, read again when the file is another one or was
// changed. It is asked while the runtime waits.
type watched[T any] struct {
	mu    sync.Mutex
	value T
	seen  stamp
}

// stamp tells versions of a file apart, all of which are put in place by a
// rename.
type stamp struct {
	modified time.Time
	size     int64
	info     os.FileInfo
}

func (s stamp) same(o stamp) bool {
	return s.info != nil && o.info != nil && os.SameFile(s.info, o.info) && s.modified.Equal(o.modified) && s.size == o.size
}

// get gives the file's content as read reads it. With an error it gives what
// was read last, the zero value if nothing was.
func (w *watched[T]) get(path string, read func(path string) (T, error)) (T, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	info, err := os.Stat(path)
	if err != nil {
		return w.value, fmt.Errorf("look at %s: %w", path, err)
	}
	now := stamp{info.ModTime(), info.Size(), info}
	if w.seen.same(now) {
		return w.value, nil
	}
	value, err := read(path)
	if err != nil {
		return w.value, err
	}
	w.value, w.seen = value, now
	return value, nil
}

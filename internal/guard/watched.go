// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"fmt"
	"os"
	"sync"
	"time"
)

// watched is the parsed content of a file, read again when the file was replaced or changed. The
// runtime waits during each call.
type watched[T any] struct {
	mu    sync.Mutex
	value T
	seen  stamp
}

// stamp distinguishes the versions of a file. Every version is put in place by a rename.
type stamp struct {
	modified time.Time
	size     int64
	info     os.FileInfo
}

func (s stamp) same(o stamp) bool {
	return s.info != nil && o.info != nil && os.SameFile(s.info, o.info) && s.modified.Equal(o.modified) && s.size == o.size
}

// get returns the file's content as read parses it. With an error, get returns the last content
// that was read, or the zero value.
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

// SPDX-License-Identifier: Apache-2.0

package guard

import (
	"fmt"
	"os"
	"sync"
	"time"
)

// watched is the parsed content of a file. get reads the file again after a change. The runtime
// waits during each call of get.
type watched[T any] struct {
	mu    sync.Mutex
	value T
	seen  stamp
}

// stamp distinguishes the versions of a file. A rename puts every version in place.
type stamp struct {
	modified time.Time
	size     int64
	info     os.FileInfo
}

func (s stamp) same(o stamp) bool {
	return s.info != nil && o.info != nil && os.SameFile(s.info, o.info) && s.modified.Equal(o.modified) && s.size == o.size
}

// get returns the file's content as parsed by read. With an error, get returns the last content
// that read returned without an error, or the zero value.
func (w *watched[T]) get(path string, read func(path string) (T, error)) (T, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	info, err := os.Stat(path)
	if err != nil {
		return w.value, fmt.Errorf("stat %s: %w", path, err)
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

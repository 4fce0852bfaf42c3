// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"time"
)

// entry is a file in an archive. If source is empty, content is the file's content.
type entry struct {
	path, source string
	content      []byte
	executable   bool
}

// archive returns a compressed tar archive, whose content depends only on the entries.
func archive(entries []entry) ([]byte, error) {
	var out bytes.Buffer
	compressed := gzip.NewWriter(&out)
	w := tar.NewWriter(compressed)
	for _, e := range entries {
		if err := e.add(w); err != nil {
			return nil, fmt.Errorf("archive %s: %w", e.path, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("finish the archive: %w", err)
	}
	if err := compressed.Close(); err != nil {
		return nil, fmt.Errorf("finish the archive: %w", err)
	}
	return out.Bytes(), nil
}

func (e entry) add(w *tar.Writer) error {
	content := e.content
	if e.source != "" {
		var err error
		if content, err = os.ReadFile(e.source); err != nil {
			return err
		}
	}
	mode := int64(0o644)
	if e.executable {
		mode = 0o755
	}
	header := tar.Header{Name: e.path, Mode: mode, Size: int64(len(content)), ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}
	if err := w.WriteHeader(&header); err != nil {
		return err
	}
	_, err := w.Write(content)
	return err
}

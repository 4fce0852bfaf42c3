// SPDX-License-Identifier: Apache-2.0

package contexts

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/renameio/v2"
)

// fileVersion is the version of the file's format.
const fileVersion = 1

// maxFile bounds the bytes that ReadFile reads.
const maxFile = 1 << 20

type file struct {
	Version  int    `json:"version"`
	Contexts []Size `json:"contexts"`
}

// ReadFile returns the sizes in a file, nil if the file does not exist.
func ReadFile(path string) ([]Size, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil && info.Size() > maxFile {
		err = fmt.Errorf("the file has %d bytes", info.Size())
	}
	var data []byte
	if err == nil {
		data, err = os.ReadFile(path)
	}
	var f file
	if err == nil {
		err = json.Unmarshal(data, &f)
	}
	if err == nil && f.Version != fileVersion {
		err = fmt.Errorf("the file has format %d, and this program reads %d", f.Version, fileVersion)
	}
	if err != nil {
		return nil, fmt.Errorf("read the sizes of contexts in %s: %w", path, err)
	}
	return slices.DeleteFunc(f.Contexts, func(s Size) bool { return s.Bytes < least || s.Bytes > most }), nil
}

// WriteFile replaces the sizes in a file, durably.
func WriteFile(path string, sizes []Size) error {
	slices.SortFunc(sizes, func(a, b Size) int { return strings.Compare(a.UUID, b.UUID) })
	data, err := json.MarshalIndent(file{fileVersion, sizes}, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the sizes of contexts: %w", err)
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the directory of the sizes of contexts: %w", err)
	}
	err = renameio.WriteFile(path, append(data, '\n'), 0o644, renameio.IgnoreUmask(), renameio.WithTempDir(dir))
	if err != nil {
		return fmt.Errorf("write the sizes of contexts: %w", err)
	}
	return nil
}

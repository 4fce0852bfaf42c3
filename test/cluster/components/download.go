// SPDX-License-Identifier: Apache-2.0

package components

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"
)

// OfficialBinaries is the address at which the Kubernetes project publishes its programs.
const OfficialBinaries = "https://dl.k8s.io"

const (
	// downloadTimeout bounds the download of one program, which has up to 100 MB.
	downloadTimeout = 5 * time.Minute
	// maxProgram bounds the size of a program.
	maxProgram = 512 << 20
	// maxChecksum bounds the size of a file with a checksum.
	maxChecksum = 1 << 10
)

// download returns the directory of a module's published programs, and downloads missing programs.
// An interrupted download leaves no directory that looks complete.
func (b *Builder) download(ctx context.Context, cache string, m Module) (string, error) {
	dir := filepath.Join(cache, m.Name+"-published-"+m.Published+"-"+runtime.GOARCH)
	if complete(dir, m) {
		return dir, nil
	}
	staging, err := os.MkdirTemp(cache, "."+m.Name+"-*")
	if err != nil {
		return "", fmt.Errorf("download %s: %w", m.Name, err)
	}
	defer os.RemoveAll(staging)
	b.say("downloading %s %s from %s (%s)", m.Name, m.Published, b.Downloads, m.DownloadSize)
	start := time.Now()
	for _, p := range m.Programs {
		url := fmt.Sprintf("%s/%s/bin/linux/%s/%s", strings.TrimSuffix(b.Downloads, "/"), m.Published, runtime.GOARCH, p.Name)
		if err := fetchProgram(ctx, url, filepath.Join(staging, p.Name)); err != nil {
			return "", err
		}
		b.say("  downloaded %s, %s", p.Name, time.Since(start).Round(time.Second))
	}
	if err := os.Chmod(staging, 0o755); err != nil {
		return "", fmt.Errorf("download %s: %w", m.Name, err)
	}
	if err := os.Rename(staging, dir); err != nil && !complete(dir, m) {
		return "", fmt.Errorf("keep the download of %s: %w", m.Name, err)
	}
	b.say("downloaded %s in %s", m.Name, time.Since(start).Round(time.Second))
	return dir, nil
}

// fetchProgram downloads a program, and compares the program with its published SHA-256 checksum.
func fetchProgram(ctx context.Context, url, path string) error {
	ctx, cancel := context.WithTimeout(ctx, downloadTimeout)
	defer cancel()
	var want strings.Builder
	if err := fetch(ctx, url+".sha256", &want, maxChecksum); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	if err != nil {
		return fmt.Errorf("write a program: %w", err)
	}
	hash := sha256.New()
	err = fetch(ctx, url, io.MultiWriter(file, hash), maxProgram)
	if closed := file.Close(); err == nil && closed != nil {
		err = fmt.Errorf("write a program: %w", closed)
	}
	if err != nil {
		return err
	}
	// The file contains the checksum alone, or followed by the program's name.
	published, _, _ := strings.Cut(strings.TrimSpace(want.String()), " ")
	if got := hex.EncodeToString(hash.Sum(nil)); got != published {
		return fmt.Errorf("%s has the SHA-256 checksum %s, and %q is published", url, got, published)
	}
	return nil
}

// fetch writes the content at an address, of at most limit bytes.
func fetch(ctx context.Context, url string, to io.Writer, limit int64) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return fmt.Errorf("download %s: %w", url, err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("download: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("download %s: the server answered %s", url, response.Status)
	}
	n, err := io.Copy(to, io.LimitReader(response.Body, limit+1))
	if err != nil {
		return fmt.Errorf("download %s: %w", url, err)
	}
	if n > limit {
		return fmt.Errorf("download %s: the content has more than %d bytes", url, limit)
	}
	return nil
}

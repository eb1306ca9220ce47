// Runs Documents/NAME.json (--job NAME, else job.json) through the C API and writes Documents/NAME.jsonl and the console.
import Foundation
import UIKit

@MainActor
final class Runner: ObservableObject {
    @Published var status = ""
    @Published var rate = "– tok/s"
    @Published var text = ""
    private var started = false

    func start() {
        if started { return }
        started = true
        UIApplication.shared.isIdleTimerDisabled = true
        let arguments = ProcessInfo.processInfo.arguments
        let flag = arguments.firstIndex(of: "--job").map { $0 + 1 }
        let named = flag.flatMap { $0 < arguments.count ? arguments[$0] : nil }
        let name = named ?? "job"
        status = name
        let thread = Thread { [weak self] in
            let code = runJob(name) { event in
                DispatchQueue.main.async { self?.show(event) }
            }
            if named != nil { exit(code) }  // the host waits for the console to close
        }
        thread.qualityOfService = .userInitiated
        thread.stackSize = 8 << 20
        thread.start()
    }

    private func show(_ event: Event) {
        if let piece = event.text { text += piece }
        if let tokensPerSecond = event.tokensPerSecond { rate = String(format: "%.2f tok/s", tokensPerSecond) }
        if let state = event.status { status = state }
    }
}

/// What the screen shows of a run.
struct Event {
    var text: String?
    var tokensPerSecond: Double?
    var status: String?
}

/// Exit code as that of les-run: 0, 1 the run failed, 2 the job was refused.
func runJob(_ name: String, show: @escaping (Event) -> Void) -> Int32 {
    let documents = FileManager.default.urls(for: .documentDirectory, in: .userDomainMask)[0]
    FileManager.default.changeCurrentDirectoryPath(documents.path)  // paths in a job are relative to Documents
    let output = documents.appendingPathComponent("\(name).jsonl")
    FileManager.default.createFile(atPath: output.path, contents: nil)
    guard let file = try? FileHandle(forWritingTo: output) else {
        show(Event(status: "cannot write \(name).jsonl"))
        return 2
    }
    let recorder = Recorder(file: file, show: show)
    les_log_level(1)
    recorder.sample()  // the memory limit as it is before anything is loaded
    guard
        let data = try? Data(contentsOf: documents.appendingPathComponent("\(name).json")),
        var job = try? JSONSerialization.jsonObject(with: data) as? [String: Any]
    else {
        recorder.refused("file: \(name).json is missing from Documents or is not a JSON object")
        return 2
    }
    job["telemetry_path"] = nil  // records go through this app
    guard let clean = try? JSONSerialization.data(withJSONObject: job) else { return 2 }

    var error = [CChar](repeating: 0, count: 4096)
    let context = Unmanaged.passUnretained(recorder).toOpaque()
    let code = les_run_job(
        String(decoding: clean, as: UTF8.self),
        { lines, context in
            guard let lines, let context else { return }
            Unmanaged<Recorder>.fromOpaque(context).takeUnretainedValue().take(String(cString: lines))
        }, context, &error, error.count)
    if code == 2 {
        recorder.refused(String(cString: error))
    } else {
        show(Event(status: code == 0 ? "\(name): done" : "\(name): \(String(cString: error))"))
    }
    return code
}

/// Writes records to the file and the console, adds samples, and tells the screen. Used by the run's thread alone.
final class Recorder {
    private struct Token: Decodable {
        let t: String
        let phase: String?
        let text: String?
        let t0_ns: Int64?
        let t1_ns: Int64?
        let accepted: Int?  // drafted tokens that came with this one
    }

    private let file: FileHandle
    private let show: (Event) -> Void
    private let decoder = JSONDecoder()
    private var firstNs: Int64?
    private var tokens = 0
    private var sampledAt = Date.distantPast

    init(file: FileHandle, show: @escaping (Event) -> Void) {
        self.file = file
        self.show = show
    }

    func take(_ lines: String) {
        if Date().timeIntervalSince(sampledAt) >= 1 { sample() }  // before the lines: the end record stays last
        write(lines)
        for line in lines.split(separator: "\n") {
            guard let token = try? decoder.decode(Token.self, from: Data(line.utf8)), token.t == "tok" else { continue }
            var event = Event(text: token.text)
            if token.phase == "decode", let t0 = token.t0_ns, let t1 = token.t1_ns {
                let first = firstNs ?? t0
                firstNs = first
                tokens += 1 + (token.accepted ?? 0)
                event.tokensPerSecond = Double(tokens) * 1e9 / Double(max(1, t1 - first))
            }
            show(event)
        }
    }

    func sample() {
        sampledAt = Date()
        if let line = les_sample(thermalState()) { write(String(cString: line) + "\n") }
    }

    func refused(_ reason: String) {
        let quoted = (try? JSONEncoder().encode(reason)).map { String(decoding: $0, as: UTF8.self) } ?? "null"
        write("{\"t\":\"end\",\"rc\":2,\"error\":\(quoted)}\n")
        show(Event(status: reason))
    }

    private func write(_ lines: String) {
        let data = Data(lines.utf8)
        try? file.write(contentsOf: data)
        try? FileHandle.standardOutput.write(contentsOf: data)
    }
}

func thermalState() -> String {
    switch ProcessInfo.processInfo.thermalState {
    case .nominal: return "nominal"
    case .fair: return "fair"
    case .serious: return "serious"
    case .critical: return "critical"
    @unknown default: return "unknown"
    }
}
